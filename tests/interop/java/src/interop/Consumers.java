package interop;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The commands {@code push}, {@code drain}, {@code stop}, {@code pull} and {@code lite}. */
final class Consumers {
    private static final long ROUTE_WAIT_S = 15;
    private static final long REFRESH_NS = 1_000_000_000L;
    private static final long SEEK_AGAIN_NS = 3_000_000_000L;

    /** A started push consumer and, for drain, its file and the places it has seen. */
    private static final class Running {
        private final DefaultMQPushConsumer push;
        private final BufferedWriter file;
        private final Set<String> places;

        Running(DefaultMQPushConsumer push, BufferedWriter file, Set<String> places) {
            this.push = push;
            this.file = file;
            this.places = places;
        }

        void close() throws Exception {
            push.shutdown();
            if (file != null) {
                file.close();
            }
        }
    }

    private final String namesrv;
    private final Map<Long, Running> running = new ConcurrentHashMap<>();
    private DefaultMQPullConsumer pullConsumer;

    Consumers(String namesrv) {
        this.namesrv = namesrv;
    }

    /** Starts a push consumer; each message is an event until {@code stop}. */
    void push(long id, Params params, Reply reply) throws Exception {
        Listener listener = new Listener(params, reply);
        DefaultMQPushConsumer consumer = prepared(params);
        if (params.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) listener::orderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) listener::concurrently);
        }
        consumer.start();
        keep(id, consumer);
    }

    /** Remembers a consumer for {@code stop} and the other commands that name its number. */
    void keep(long id, DefaultMQPushConsumer consumer) {
        running.put(id, new Running(consumer, null, Set.of()));
    }

    /** Starts a push consumer that writes a line for each message into a file until stop. */
    void drain(long id, Params params, Reply reply) throws Exception {
        BufferedWriter file =
            Files.newBufferedWriter(Path.of(params.text("file")), StandardCharsets.UTF_8);
        Set<String> places = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = start(params, (messages, context) -> {
            try {
                synchronized (file) {
                    for (MessageExt message : messages) {
                        drainOne(message, file);
                    }
                    file.flush();
                }
            } catch (Exception e) {
                reply.event("error", Map.of("text", "cannot write the received keys: " + e));
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            String broker = context.getMessageQueue().getBrokerName();
            for (MessageExt message : messages) {
                places.add(broker + " " + message.getQueueId() + " " + message.getQueueOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        running.put(id, new Running(consumer, file, places));
    }

    private static void drainOne(MessageExt message, BufferedWriter file) throws IOException {
        boolean intact = Arrays.equals(message.getBody(), Flood.body(message.getKeys()));
        file.write(message.getKeys() + "\t" + message.getMsgId() + "\t" + message.getQueueId()
            + "\t" + message.getQueueOffset() + "\t" + (intact ? "intact" : "changed") + "\n");
    }

    /** Waits until drain {@code handle} has got messages of at least {@code count} places. */
    void awaitPlaces(Params params) throws Exception {
        Running consumer = find(params);
        await(params, params.number("count", 1), () -> consumer.places.size(), true);
    }

    private static void await(Params params, long wanted, LongSupplier count, boolean orMore)
        throws Exception {
        // After a rebalance a consumer has a newer subscription, and the heartbeat that tells the
        // broker is left out where another one is under way: pulls are refused until the next one,
        // which comes 30 s later.
        long deadline = System.nanoTime() + params.longNumber("timeout", 75) * 1_000_000_000L;
        for (long now = count.getAsLong(); now != wanted && !(orMore && now > wanted);
            now = count.getAsLong()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("there are " + now + ", not " + wanted);
            }
            Thread.sleep(20);
        }
    }

    /** Starts a push consumer whose listener serves the messages side by side. */
    DefaultMQPushConsumer start(Params params, MessageListenerConcurrently listener)
        throws Exception {
        DefaultMQPushConsumer consumer = prepared(params);
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private DefaultMQPushConsumer prepared(Params params) throws Exception {
        DefaultMQPushConsumer consumer = Clients.configured(
            new DefaultMQPushConsumer(params.text("group"), Clients.signing(),
                new AllocateMessageQueueAveragely(), params.flag("trace"), null),
            namesrv, params.text("instance", "push-" + System.nanoTime()));
        // Offsets are stored at the shutdown; without this those of running listeners are missing.
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setHeartbeatBrokerInterval(params.number("heartbeat", 30_000));
        consumer.setConsumeMessageBatchMaxSize(params.number("batch", 1));
        Messages.setEnum(consumer, "setMessageModel", params.text("model", "CLUSTERING"));
        Messages.setEnum(consumer, "setConsumeFromWhere",
            params.text("from", "CONSUME_FROM_FIRST_OFFSET"));
        consumer.setMaxReconsumeTimes(params.number("maxReconsume", -1));
        consumer.subscribe(params.text("topic"), selector(params));
        return consumer;
    }

    /** The filter of a command: an SQL expression or tags. */
    private static MessageSelector selector(Params params) {
        String sql = params.text("sql", "");
        return sql.isEmpty() ? MessageSelector.byTag(params.text("expression", "*"))
            : MessageSelector.bySql(sql);
    }

    void suspend(Params params) {
        find(params).push.suspend();
    }

    void resume(Params params) {
        find(params).push.resume();
    }

    /** Does at once what the client's timers do every 20 and 30 s: ask for routes, rebalance. */
    void refresh(Params params) {
        var factory = find(params).push.getDefaultMQPushConsumerImpl().getmQClientFactory();
        factory.updateTopicRouteInfoFromNameServer();
        factory.rebalanceImmediately();
    }

    /**
     * Waits until the push consumer {@code handle} owns exactly {@code count} queues; with
     * {@code refresh} it does not wait for its timers, which ask for routes every 30 s.
     */
    void awaitQueues(Params params) throws Exception {
        Running consumer = find(params);
        String topic = params.text("topic");
        AtomicLong refreshed = new AtomicLong(System.nanoTime() - REFRESH_NS);
        await(params, params.number("count", 1), () -> {
            if (params.flag("refresh") && System.nanoTime() - refreshed.get() >= REFRESH_NS) {
                refresh(params);
                refreshed.set(System.nanoTime());
            }
            return consumer.push.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                .getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic)).count();
        }, false);
    }

    /** Waits until the queues of the topic have got at least {@code count} messages in all. */
    void awaitStored(Params params) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer();
        List<MessageQueue> queues = queues(consumer, params.text("topic"));
        await(params, params.number("count", 1), () -> {
            long stored = 0;
            for (MessageQueue queue : queues) {
                try {
                    stored += consumer.maxOffset(queue);
                } catch (MQClientException e) {
                    throw new IllegalStateException(e);
                }
            }
            return stored;
        }, true);
    }

    private Running find(Params params) {
        Running consumer = running.get(params.longNumber("handle", -1));
        if (consumer == null) {
            throw new IllegalArgumentException("nothing runs as " + params.text("handle"));
        }
        return consumer;
    }

    /** Ends what the push or drain command with the number {@code handle} started. */
    void stop(Params params) throws Exception {
        Running consumer = find(params);
        running.remove(params.longNumber("handle", -1));
        consumer.close();
    }

    void shutdown() throws Exception {
        for (Running consumer : running.values()) {
            consumer.close();
        }
        if (pullConsumer != null) {
            pullConsumer.shutdown();
        }
    }

    /** One pull, or with {@code all} every message of every queue of the topic. */
    void pull(Params params, Reply reply) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer();
        List<MessageQueue> queues = queues(consumer, params.text("topic"));
        MessageSelector expression = selector(params);
        if (!ExpressionType.isTagType(expression.getExpressionType())) {
            awaitVersion(consumer, queues.get(0), params);
        }
        if (!params.flag("all")) {
            int queueId = params.number("queue", 0);
            queues.removeIf(queue -> queue.getQueueId() != queueId);
            PullResult result = consumer.pull(queues.get(0), expression,
                params.longNumber("queueOffset", 0), params.number("max", 32));
            reply.event("pulled", pulled(result));
            printFound(result, reply);
            return;
        }
        queues.sort(null);
        for (MessageQueue queue : queues) {
            long next = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (next < end) {
                PullResult result = consumer.pull(queue, expression, next, 32);
                if (result.getNextBeginOffset() <= next) {
                    throw new IllegalStateException(queue + " at " + next + " answers " + result);
                }
                printFound(result, reply);
                next = result.getNextBeginOffset();
            }
        }
    }

    /** The client believes that a broker knows SQL once it has seen a heartbeat answered. */
    private static void awaitVersion(DefaultMQPullConsumer consumer, MessageQueue queue,
        Params params) throws Exception {
        var factory =
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        factory.updateTopicRouteInfoFromNameServer(queue.getTopic());
        await(params, 1, () -> {
            factory.sendHeartbeatToAllBrokerWithLock();
            return factory.findBrokerAddressInSubscribe(queue.getBrokerName(), 0, false)
                .getBrokerVersion();
        }, true);
    }

    /** The queues of a topic; one that a send has just created may need a moment to have a route. */
    private static List<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic)
        throws Exception {
        long deadline = System.nanoTime() + ROUTE_WAIT_S * 1_000_000_000L;
        while (true) {
            try {
                return new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
            } catch (MQClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(50);
            }
        }
    }

    /** Prints the offsets a group has stored at the broker, -1 for none. */
    void committed(Params params, Reply reply) throws Exception {
        DefaultMQPullConsumer consumer = Clients.configured(
            new DefaultMQPullConsumer(params.text("group")), namesrv,
            "committed-" + System.nanoTime());
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(params.text("topic"))) {
                Map<String, Object> fields = Messages.queue(queue);
                if (params.longNumber("commit", -1) >= 0) {
                    consumer.getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(
                        queue, params.longNumber("commit", -1), false);
                }
                fields.put("committed", consumer.fetchConsumeOffset(queue, true));
                reply.event("committed", fields);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void printFound(PullResult result, Reply reply) throws Exception {
        if (result.getMsgFoundList() != null) {
            for (MessageExt message : result.getMsgFoundList()) {
                reply.event("message", Messages.message(message));
            }
        }
    }

    private static Map<String, Object> pulled(PullResult result) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("status", result.getPullStatus().name());
        fields.put("nextBeginOffset", result.getNextBeginOffset());
        fields.put("minOffset", result.getMinOffset());
        fields.put("maxOffset", result.getMaxOffset());
        return fields;
    }

    private synchronized DefaultMQPullConsumer pullConsumer() throws Exception {
        if (pullConsumer == null) {
            pullConsumer = Clients.configured(
                new DefaultMQPullConsumer("interop-pull", Clients.signing()), namesrv, "pull");
            pullConsumer.start();
        }
        return pullConsumer;
    }

    /** Polls a lite pull consumer until {@code count} messages came, commits and shuts down. */
    void lite(Params params, Reply reply) throws Exception {
        DefaultLitePullConsumer consumer = Clients.configured(
            new DefaultLitePullConsumer(params.text("group")), namesrv,
            "lite-" + System.nanoTime());
        consumer.setAutoCommit(false);
        Messages.setEnum(consumer, "setConsumeFromWhere", "CONSUME_FROM_FIRST_OFFSET");
        String topic = params.text("topic");
        long seek = params.longNumber("seek", -1);
        if (seek < 0) {
            consumer.subscribe(topic, params.text("expression", "*"));
        }
        consumer.start();
        try {
            Collection<MessageQueue> silent = new ArrayList<>();
            if (seek >= 0) {
                silent.addAll(consumer.fetchMessageQueues(topic));
                consumer.assign(silent);
                seek(consumer, silent, seek);
            }
            int wanted = params.number("count", 1);
            long deadline = System.nanoTime() + params.longNumber("timeout", 20) * 1_000_000_000L;
            int received = 0;
            Set<String> places = new HashSet<>();
            long patience = System.nanoTime() + SEEK_AGAIN_NS;
            while (received < wanted && System.nanoTime() < deadline) {
                if (System.nanoTime() > patience) {
                    seek(consumer, silent, seek);
                    patience = System.nanoTime() + SEEK_AGAIN_NS;
                }
                for (MessageExt message : consumer.poll(500)) {
                    // The stock client may hand out what it had pulled before it was told to seek,
                    // and then some of it again.
                    String place = message.getQueueId() + " " + message.getQueueOffset();
                    if (seek < 0 || message.getQueueOffset() >= seek && places.add(place)) {
                        int queueId = message.getQueueId();
                        silent.removeIf(queue -> queue.getQueueId() == queueId);
                        reply.event("message", Messages.message(message));
                        received++;
                    }
                }
            }
            if (!params.flag("uncommitted")) {
                consumer.commitSync();
            }
        } finally {
            consumer.shutdown();
        }
    }

    /**
     * Sets the place of queues. The stock client forgets it now and then: a pull that just begins
     * takes the place, its answer is dropped as that of a cancelled pull, and the next pull goes on
     * where the last one ended.
     */
    private static void seek(DefaultLitePullConsumer consumer, Collection<MessageQueue> queues, long place)
        throws Exception {
        for (MessageQueue queue : queues) {
            consumer.seek(queue, place);
        }
    }
}
