package interop;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** The parameters of one command: a URL query string with UTF-8 percent escapes. */
final class Params {
    private final Map<String, String> values = new LinkedHashMap<>();

    Params(String query) {
        for (String pair : query.split("&")) {
            int equals = pair.indexOf('=');
            if (equals > 0) {
                values.put(decode(pair.substring(0, equals)), decode(pair.substring(equals + 1)));
            }
        }
    }

    private static String decode(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("parameter " + name + " is missing");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    long longNumber(String name, long otherwise) {
        return values.containsKey(name) ? Long.parseLong(values.get(name)) : otherwise;
    }

    /** Returns the comma-separated values, none when the parameter is missing or empty. */
    Set<String> list(String name) {
        String value = text(name, "");
        return value.isEmpty() ? Set.of() : Set.of(value.split(","));
    }

    boolean flag(String name) {
        return Boolean.parseBoolean(values.get(name));
    }

    /** Returns the parameters whose names start with the prefix, without it. */
    Map<String, String> startingWith(String prefix) {
        Map<String, String> found = new LinkedHashMap<>();
        for (Map.Entry<String, String> entry : values.entrySet()) {
            if (entry.getKey().startsWith(prefix)) {
                found.put(entry.getKey().substring(prefix.length()), entry.getValue());
            }
        }
        return found;
    }
}
