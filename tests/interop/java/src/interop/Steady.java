package interop;

import java.io.BufferedWriter;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeoutException;
import java.util.function.IntSupplier;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The command {@code steady}: sends to every broker of a topic at a steady pace, one thread each,
 * to chosen queues and without any retry, until {@code steady_stop}. So each broker's longest time
 * without a successful send is known, whatever the others do.
 *
 * <p>With {@code insist} one thread sends as an application does that must not lose anything: to any
 * broker, with the client's own retries, and each message again until it is acknowledged.
 *
 * <p>Each acknowledgement is a line in {@code file}: key, message id, broker, queue id, offset.
 */
final class Steady {
    private static final int SEND_TIMEOUT_MS = 3000;

    /** What one broker's thread has seen; its numbers are read meanwhile too. */
    private static final class Line {
        private volatile int sent;
        private volatile int failed;
        private long lastSuccessNs = System.nanoTime();
        private long longestGapNs;
        private final Map<String, Integer> failures = new TreeMap<>();

        synchronized void fail(Exception failure) {
            failed++;
            failures.merge(describe(failure), 1, Integer::sum);
        }

        synchronized String told() {
            return sent + " were acknowledged, " + failed + " failed: " + failures;
        }
    }

    private final DefaultMQProducer producer;
    private final String topic;
    private final String prefix;
    private final long intervalMs;
    private final BufferedWriter file;
    private final Map<String, Line> lines = new TreeMap<>();
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean stopping;

    Steady(DefaultMQProducer producer, Params params) throws Exception {
        this.producer = producer;
        this.topic = params.text("topic");
        this.prefix = params.text("prefix", "s");
        this.intervalMs = params.number("interval", 20);
        this.file = Files.newBufferedWriter(Path.of(params.text("file")), StandardCharsets.UTF_8);
        if (params.flag("insist")) {
            Line line = new Line();
            lines.put("", line);
            threads.add(new Thread(() -> insist(line), "insist"));
            threads.forEach(Thread::start);
            return;
        }
        producer.setRetryTimesWhenSendFailed(0);
        Set<String> brokers = new TreeSet<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            brokers.add(queue.getBrokerName());
        }
        for (String broker : brokers) {
            Line line = new Line();
            lines.put(broker, line);
            threads.add(new Thread(() -> run(broker, line), "steady-" + broker));
        }
        threads.forEach(Thread::start);
    }

    private void run(String broker, Line line) {
        for (int i = 0; !stopping; i++) {
            String key = prefix + "-" + broker + "-" + i;
            MessageQueue queue = new MessageQueue(topic, broker, 0);
            try {
                Message message = new Message(topic, null, key, Flood.body(key));
                SendResult result = producer.send(message, queue, SEND_TIMEOUT_MS);
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new MQClientException(result.getSendStatus().toString(), null);
                }
                acknowledge(key, result, line);
            } catch (Exception e) {
                line.fail(e);
            }
            try {
                Thread.sleep(intervalMs);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    private void insist(Line line) {
        for (int i = 0; !stopping; i++) {
            String key = prefix + "-" + i;
            boolean acknowledged = false;
            while (!acknowledged && !stopping) {
                try {
                    Message message = new Message(topic, null, key, Flood.body(key));
                    SendResult result = producer.send(message, SEND_TIMEOUT_MS);
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        throw new MQClientException(result.getSendStatus().toString(), null);
                    }
                    acknowledge(key, result, line);
                    acknowledged = true;
                } catch (Exception e) {
                    line.fail(e);
                }
                try {
                    Thread.sleep(intervalMs);
                } catch (InterruptedException e) {
                    return;
                }
            }
        }
    }

    private static String describe(Exception failure) {
        String text = String.valueOf(failure.getMessage());
        String told = failure.getClass().getSimpleName() + " " + text.substring(0, Math.min(120, text.length()));
        return failure.getCause() == null ? told : told + " because of " + failure.getCause();
    }

    private void acknowledge(String key, SendResult result, Line line) throws Exception {
        long now = System.nanoTime();
        line.longestGapNs = Math.max(line.longestGapNs, now - line.lastSuccessNs);
        line.lastSuccessNs = now;
        line.sent++;
        MessageQueue queue = result.getMessageQueue();
        synchronized (file) {
            file.write(key + "\t" + result.getMsgId() + "\t" + queue.getBrokerName() + "\t"
                + queue.getQueueId() + "\t" + result.getQueueOffset() + "\n");
        }
    }

    /** Does now what the client's timers do every 30 s: learns all routes, and forgets brokers. */
    void look() throws Exception {
        MQClientInstance instance = producer.getDefaultMQProducerImpl().getMqClientFactory();
        instance.updateTopicRouteInfoFromNameServer();
        Method cleaning = MQClientInstance.class.getDeclaredMethod("cleanOfflineBroker");
        cleaning.setAccessible(true);
        cleaning.invoke(instance);
    }

    /** Waits until {@code count} more sends to a broker are acknowledged or {@code failed}. */
    void await(Params params) throws Exception {
        Line line = lines.get(params.text("broker", ""));
        IntSupplier count = params.flag("failed") ? () -> line.failed : () -> line.sent;
        int wanted = count.getAsInt() + params.number("count", 1);
        long deadline = System.nanoTime() + params.longNumber("timeout", 15) * 1_000_000_000L;
        while (count.getAsInt() < wanted) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException(
                    "no such end of a send to " + params.text("broker", "") + ": " + line.told());
            }
            Thread.sleep(20);
        }
    }

    /** Ends the threads and tells, per broker, what they saw. */
    void stop(Reply reply) throws Exception {
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
        file.close();
        for (Map.Entry<String, Line> entry : lines.entrySet()) {
            Line line = entry.getValue();
            long gapNs = Math.max(line.longestGapNs, System.nanoTime() - line.lastSuccessNs);
            reply.event("steady", Map.of(
                "broker", entry.getKey(),
                "sent", line.sent,
                "failed", line.failed,
                "longestGapMs", gapNs / 1_000_000,
                "failures", line.failures.toString()));
        }
    }
}
