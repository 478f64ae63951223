import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin commands one after the other in one JVM, since the start of a JVM costs more than
 * most of them.
 *
 * <p>Each input line is {@code TIMEOUT_MS TAB PATTERN TAB ARGUMENT TAB ARGUMENT...}. A command that
 * runs longer, or whose output has contained the pattern, is interrupted. Each answer is a line
 * {@code MARK ENDED|STOPPED BASE64} with all that the command printed. Ends with its input.
 */
public final class MqAdmin {
    private static final String MARK = "@mqadmin";

    private MqAdmin() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answers.println(MARK + " READY -");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            boolean ended = run(
                Arrays.copyOfRange(parts, 2, parts.length),
                Long.parseLong(parts[0]), parts[1], printed);
            String text = Base64.getEncoder().encodeToString(printed.toByteArray());
            answers.println(MARK + (ended ? " ENDED " : " STOPPED ") + (text.isEmpty() ? "-" : text));
        }
        // Some threads of the client libraries are not daemons.
        System.exit(0);
    }

    private static boolean run(
        String[] command, long timeoutMs, String pattern, ByteArrayOutputStream printed)
        throws InterruptedException {
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(capture);
        System.setErr(capture);
        Runnable job =
            command[0].startsWith("@")
                ? () -> startClient(command)
                : () -> runTool(command);
        Thread worker = new Thread(job, "mqadmin");
        worker.setDaemon(true);
        worker.start();
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        while (worker.isAlive() && System.nanoTime() < deadline) {
            worker.join(20);
            hastenShutdown(worker);
            if (!pattern.isEmpty() && printed.toString(StandardCharsets.UTF_8).contains(pattern)) {
                break;
            }
        }
        boolean ended = !worker.isAlive();
        if (!ended) {
            // What it says to being stopped is no part of any command's output.
            PrintStream nowhere = new PrintStream(OutputStream.nullOutputStream());
            System.setOut(nowhere);
            System.setErr(nowhere);
            worker.interrupt();
            worker.join(2_000);
        }
        System.setOut(out);
        System.setErr(err);
        return ended;
    }

    /** Wakes a thread of a closing client that would look up only after three seconds. */
    private static void hastenShutdown(Thread worker) {
        for (StackTraceElement frame : worker.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread")
                && frame.getMethodName().equals("shutdown")) {
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    if (thread.getName().contains("NettyEventExecutor")) {
                        thread.interrupt();
                    }
                }
                return;
            }
        }
    }

    private static void runTool(String[] command) {
        try {
            // Commands are kept from call to call, and one of them keeps a producer that is closed.
            for (Field field : MQAdminStartup.class.getDeclaredFields()) {
                if (List.class.isAssignableFrom(field.getType())) {
                    field.setAccessible(true);
                    ((List<?>) field.get(null)).clear();
                }
            }
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
        MQAdminStartup.main0(command, null);
    }

    /**
     * Starts a client that lives as long as this process: {@code @push GROUP TOPIC} or {@code @producer
     * GROUP TOPIC BROKER}, each with {@code -n NAMESRV}; {@code @wait MS} only waits.
     */
    private static void startClient(String[] command) {
        try {
            if (command[0].equals("@wait")) {
                Thread.sleep(Long.parseLong(command[1]));
            } else if (command[0].equals("@push")) {
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command[1]);
                consumer.setInstanceName(command[1]);
                consumer.setNamesrvAddr(command[4]);
                consumer.setPersistConsumerOffsetInterval(200);
                consumer.subscribe(command[2], "*");
                consumer.registerMessageListener(
                    (MessageListenerConcurrently)
                        (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
                consumer.start();
            } else {
                DefaultMQProducer producer = new DefaultMQProducer(command[1]);
                producer.setInstanceName(command[1]);
                producer.setNamesrvAddr(command[5]);
                producer.setHeartbeatBrokerInterval(300);
                producer.start();
                // Brokers hear of a producer with its first message.
                producer.send(
                    new Message(command[2], "first".getBytes(StandardCharsets.UTF_8)),
                    new MessageQueue(command[2], command[3], 1));
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }
}
