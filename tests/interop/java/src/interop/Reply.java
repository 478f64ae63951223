package interop;

import java.io.PrintStream;
import java.util.Map;

/** Writes the JSON lines that answer one command; every line carries the number of its command. */
final class Reply {
    private static final PrintStream OUT = System.out;

    private final long id;

    Reply(long id) {
        this.id = id;
    }

    /** Writes one event of this command. */
    void event(String name, Map<String, ?> fields) {
        StringBuilder line = new StringBuilder("{\"id\":").append(id).append(",\"event\":");
        writeText(line, name);
        for (Map.Entry<String, ?> field : fields.entrySet()) {
            line.append(',');
            writeText(line, field.getKey());
            line.append(':');
            writeValue(line, field.getValue());
        }
        line.append('}');
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void writeValue(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            out.append('{');
            String separator = "";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                writeText(out, String.valueOf(entry.getKey()));
                out.append(':');
                writeValue(out, entry.getValue());
                separator = ",";
            }
            out.append('}');
        } else if (value instanceof Iterable) {
            out.append('[');
            String separator = "";
            for (Object item : (Iterable<?>) value) {
                out.append(separator);
                writeValue(out, item);
                separator = ",";
            }
            out.append(']');
        } else {
            writeText(out, String.valueOf(value));
        }
    }

    private static void writeText(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
