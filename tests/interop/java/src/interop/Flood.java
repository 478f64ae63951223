package interop;

import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

/**
 * The command {@code produce}: sends {@code count} messages with at most {@code window} of them
 * unanswered, and sends each again until it is acknowledged. The client's own retries are off, so
 * that every attempt is known here.
 *
 * <p>Each acknowledgement is a line in {@code file}: key, message id, queue id, queue offset, and
 * how many earlier attempts for that key had an unknown outcome. A refusal by the broker and a
 * connection that could not be made are not unknown: nothing was stored.
 */
final class Flood {
    private static final long RETRY_PAUSE_MS = 100;
    private static final int PROGRESS_EVERY = 1000;
    /** The client's default: a send that is lost with the broker counts as unknown after this. */
    private static final int SEND_TIMEOUT_MS = 3000;

    private final DefaultMQProducer producer;
    private final String topic;
    private final String prefix;
    private final Reply reply;
    private final BufferedWriter acknowledged;
    private final Semaphore window;
    private final CountDownLatch remaining;
    private final AtomicInteger acknowledgedCount = new AtomicInteger();
    private final AtomicLong unknownCount = new AtomicLong();
    private final AtomicLong refusedCount = new AtomicLong();
    private final ScheduledExecutorService retries = Executors.newSingleThreadScheduledExecutor();

    private Flood(DefaultMQProducer producer, Params params, Reply reply) throws Exception {
        this.producer = producer;
        this.topic = params.text("topic");
        this.prefix = params.text("prefix", "m");
        this.reply = reply;
        this.acknowledged =
            Files.newBufferedWriter(Path.of(params.text("file")), StandardCharsets.UTF_8);
        this.window = new Semaphore(params.number("window", 256));
        this.remaining = new CountDownLatch(params.number("count", 1));
    }

    static void run(DefaultMQProducer producer, Params params, Reply reply) throws Exception {
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        Flood flood = new Flood(producer, params, reply);
        try (BufferedWriter closing = flood.acknowledged) {
            for (int i = 0; i < params.number("count", 1); i++) {
                flood.window.acquire();
                flood.attempt(i, 0);
            }
            if (!flood.remaining.await(params.number("timeout", 300), TimeUnit.SECONDS)) {
                throw new IllegalStateException(
                    flood.remaining.getCount() + " messages were never acknowledged");
            }
        } finally {
            flood.retries.shutdownNow();
        }
        reply.event("produced", Map.of(
            "acknowledged", flood.acknowledgedCount.get(),
            "unknown", flood.unknownCount.get(),
            "refused", flood.refusedCount.get()));
    }

    private void attempt(int i, int unknownBefore) {
        String key = prefix + "-" + i;
        Message message = new Message(topic, null, key, body(key));
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        acknowledge(key, result, unknownBefore);
                    } else {
                        again(i, unknownBefore, null);
                    }
                }

                @Override
                public void onException(Throwable e) {
                    again(i, unknownBefore, e);
                }
            });
        } catch (Exception e) {
            again(i, unknownBefore, e);
        }
    }

    /**
     * The body that the consumer can recompute from the key: 100 digits, or N KiB of noise, which
     * no compression makes smaller, for a key that starts with "kbN-".
     */
    static byte[] body(String key) {
        if (key.startsWith("kb")) {
            byte[] noise = new byte[Integer.parseInt(key.substring(2, key.indexOf('-'))) * 1024];
            new Random(key.hashCode()).nextBytes(noise);
            return noise;
        }
        return ("body of " + key + " " + "0123456789".repeat(10)).getBytes(StandardCharsets.UTF_8);
    }

    private void acknowledge(String key, SendResult result, int unknownBefore) {
        try {
            synchronized (acknowledged) {
                acknowledged.write(key + "\t" + result.getMsgId() + "\t"
                    + result.getMessageQueue().getQueueId() + "\t" + result.getQueueOffset()
                    + "\t" + unknownBefore + "\n");
            }
        } catch (Exception e) {
            reply.event("error", Map.of("text", "cannot write the acknowledged keys: " + e));
            return;
        }
        int count = acknowledgedCount.incrementAndGet();
        if (count % PROGRESS_EVERY == 0) {
            reply.event("progress", Map.of("acknowledged", count));
        }
        window.release();
        remaining.countDown();
    }

    private void again(int i, int unknownBefore, Throwable failure) {
        boolean refused = isCausedBy(failure, MQBrokerException.class)
            || isCausedBy(failure, RemotingConnectException.class);
        (refused ? refusedCount : unknownCount).incrementAndGet();
        int unknown = refused ? unknownBefore : unknownBefore + 1;
        if (!retries.isShutdown()) {
            retries.schedule(() -> attempt(i, unknown), RETRY_PAUSE_MS, TimeUnit.MILLISECONDS);
        }
    }

    private static boolean isCausedBy(Throwable failure, Class<? extends Throwable> kind) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (kind.isInstance(cause)) {
                return true;
            }
        }
        return false;
    }
}
