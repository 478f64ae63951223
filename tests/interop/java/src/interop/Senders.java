package interop;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** The command {@code send}: sync, async, one-way and batch, to any queue or a chosen one. */
final class Senders {
    private static final long ASYNC_WAIT_S = 30;
    /** More than the usual 3 s, for 4 MiB on a busy machine. */
    static final int SEND_TIMEOUT_MS = 10_000;

    private final String namesrv;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();

    Senders(String namesrv) {
        this.namesrv = namesrv;
    }

    /** Returns the started producer of a group; one group has one producer in this process. */
    DefaultMQProducer producer(String group) {
        return producer(group, false);
    }

    private DefaultMQProducer producer(String group, boolean trace) {
        return producers.computeIfAbsent(group, name -> {
            DefaultMQProducer producer = Clients.configured(
                new DefaultMQProducer(name, Clients.signing(), trace, null), namesrv, "send-" + name);
            producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
            producer.setMaxMessageSize(16 * 1024 * 1024);
            try {
                producer.start();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return producer;
        });
    }

    void shutdown() {
        producers.values().forEach(DefaultMQProducer::shutdown);
    }

    /**
     * Sends {@code count} messages. Body i is the base64 decoded {@code body} or the content of
     * {@code bodyFile}, followed by "#i" unless {@code exact} is set; "{i}" in the keys and in the
     * values of {@code property.NAME} becomes i. {@code level} is a delay level.
     */
    void send(Params params, Reply reply) throws Exception {
        DefaultMQProducer producer =
            producer(params.text("group", "interop-producer"), params.flag("trace"));
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < params.number("count", 1); i++) {
            messages.add(message(params, i));
        }
        switch (params.text("mode", "sync")) {
            case "sync":
                for (Message message : messages) {
                    reply.event("sent", Messages.sendResult(sendOne(producer, message, params)));
                }
                return;
            case "async":
                sendAsync(producer, messages, params, reply);
                return;
            case "oneway":
                for (Message message : messages) {
                    sendOneway(producer, message, params);
                }
                return;
            case "batch":
                int queueId = params.number("queue", -1);
                SendResult result = queueId < 0 ? producer.send(messages)
                    : producer.send(messages, queue(producer, params.text("topic"), queueId));
                reply.event("sent", Messages.sendResult(result));
                return;
            default:
                throw new IllegalArgumentException("unknown mode " + params.text("mode"));
        }
    }

    static Message message(Params params, int i) throws Exception {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        if (params.text("bodyFile", "").isEmpty()) {
            body.write(Base64.getDecoder().decode(params.text("body")));
        } else {
            body.write(Files.readAllBytes(Path.of(params.text("bodyFile"))));
        }
        if (!params.flag("exact")) {
            body.write(("#" + i).getBytes(StandardCharsets.UTF_8));
        }
        Message message = new Message(params.text("topic"), body.toByteArray());
        String tags = params.text("tags", "");
        if (!tags.isEmpty()) {
            String[] choices = tags.split(",");
            message.setTags(choices[i % choices.length]);
        }
        String keys = params.text("keys", "");
        if (!keys.isEmpty()) {
            message.setKeys(keys.replace("{i}", Integer.toString(i)));
        }
        message.setFlag(params.number("flag", 0));
        if (params.number("level", 0) != 0) {
            message.setDelayTimeLevel(params.number("level", 0));
        }
        params.startingWith("property.").forEach((name, value) ->
            message.putUserProperty(name, value.replace("{i}", Integer.toString(i))));
        return message;
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, Params params)
        throws Exception {
        int queueId = params.number("queue", -1);
        if (!params.text("broker", "").isEmpty()) {
            // A queue that the route need not have.
            return producer.send(
                message, new MessageQueue(message.getTopic(), params.text("broker"), queueId));
        }
        if (queueId >= 0) {
            return producer.send(message, queue(producer, message.getTopic(), queueId));
        }
        if (!params.text("shard", "").isEmpty()) {
            return producer.send(message, SELECTOR, params.number("shard", 0));
        }
        return producer.send(message);
    }

    private static void sendOneway(DefaultMQProducer producer, Message message, Params params)
        throws Exception {
        int queueId = params.number("queue", -1);
        if (queueId >= 0) {
            producer.sendOneway(message, queue(producer, message.getTopic(), queueId));
        } else {
            producer.sendOneway(message);
        }
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages,
        Params params, Reply reply) throws Exception {
        CountDownLatch outstanding = new CountDownLatch(messages.size());
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    reply.event("sent", Messages.sendResult(result));
                    outstanding.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failure.compareAndSet(null, e);
                    outstanding.countDown();
                }
            });
        }
        if (!outstanding.await(ASYNC_WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(outstanding.getCount() + " async sends unanswered");
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }

    private static final MessageQueueSelector SELECTOR = (queues, message, argument) -> {
        List<MessageQueue> sorted = new ArrayList<>(queues);
        Collections.sort(sorted);
        return sorted.get((Integer) argument % sorted.size());
    };

    private static MessageQueue queue(DefaultMQProducer producer, String topic, int queueId)
        throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            if (queue.getQueueId() == queueId) {
                return queue;
            }
        }
        throw new IllegalArgumentException("topic " + topic + " has no queue " + queueId);
    }
}
