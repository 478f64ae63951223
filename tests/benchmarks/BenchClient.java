import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The Java client at work, as client_loop.py is mailboat's: one line of JSON a window, until it is
 * killed. Run by the source launcher: {@code java -cp 'jars/*' BenchClient.java WORK NAME=VALUE ...}.
 */
public final class BenchClient {
    private static final Map<String, String> OPTIONS = new HashMap<>();
    private static final LongAdder FAILURES = new LongAdder();

    private BenchClient() {
    }

    public static void main(String[] words) throws Exception {
        for (int i = 1; i < words.length; i++) {
            String[] parts = words[i].split("=", 2);
            OPTIONS.put(parts[0], parts[1]);
        }
        if (words[0].equals("drain")) {
            drain();
        } else {
            send(words[0].equals("batch") ? number("batch") : 1);
        }
    }

    private static void send(int batch) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_client");
        producer.setNamesrvAddr(OPTIONS.get("namesrv"));
        producer.start();
        LongAdder sent = new LongAdder();
        for (int i = 0; i < number("tasks"); i++) {
            Thread thread = new Thread(() -> work(producer, batch, sent));
            thread.setDaemon(true);
            thread.start();
        }
        while (true) {
            long began = System.nanoTime();
            long cpu = cpuNanos();
            long before = sent.sum();
            Thread.sleep((long) (Double.parseDouble(OPTIONS.get("seconds")) * 1000));
            tell(sent.sum() - before, began, cpu);
        }
    }

    private static void work(DefaultMQProducer producer, int batch, LongAdder sent) {
        byte[] body = new byte[number("body")];
        java.util.Arrays.fill(body, (byte) 'b');
        String topic = OPTIONS.get("topic");
        while (true) {
            try {
                if (batch > 1) {
                    List<Message> messages = new ArrayList<>(batch);
                    for (int i = 0; i < batch; i++) {
                        messages.add(new Message(topic, "TagA", body));
                    }
                    producer.send(messages);
                } else {
                    producer.send(new Message(topic, "TagA", body));
                }
                sent.add(batch);
            } catch (Exception e) {
                e.printStackTrace();
                FAILURES.increment();
            }
        }
    }

    /** Reads everything from the first offset, in one new group after the other. */
    private static void drain() throws Exception {
        long wanted = number("count");
        for (int pass = 0; ; pass++) {
            AtomicLong count = new AtomicLong();
            AtomicLong began = new AtomicLong();
            AtomicLong cpu = new AtomicLong();
            CountDownLatch done = new CountDownLatch(1);
            DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer("bench_drain_" + System.nanoTime() + "_" + pass);
            consumer.setNamesrvAddr(OPTIONS.get("namesrv"));
            consumer.setInstanceName("pass" + pass);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(OPTIONS.get("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (began.compareAndSet(0, System.nanoTime())) {
                    cpu.set(cpuNanos());
                }
                if (count.addAndGet(messages.size()) >= wanted) {
                    done.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            done.await();
            tell(count.get(), began.get(), cpu.get());
            consumer.shutdown();
        }
    }

    private static int number(String name) {
        return Integer.parseInt(OPTIONS.get(name));
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void tell(long messages, long began, long cpu) {
        System.out.printf(Locale.ROOT, "{\"messages\": %d, \"seconds\": %.6f, \"cpu_s\": %.6f, \"failures\": %d}%n",
            messages, (System.nanoTime() - began) / 1e9, (cpuNanos() - cpu) / 1e9,
            FAILURES.sumThenReset());
    }
}
