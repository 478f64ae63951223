package interop;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The commands that ask: messages by id and key, offsets, topics, routes, statistics. */
final class Queries {
    private static final long ROUTE_WAIT_S = 40;

    private final String namesrv;
    private final Senders senders;
    private DefaultMQAdminExt admin;

    Queries(String namesrv, Senders senders) {
        this.namesrv = namesrv;
        this.senders = senders;
    }

    synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = Clients.configured(
                new DefaultMQAdminExt(Clients.signing(), Math.max(Clients.API_TIMEOUT_MS, 5000)),
                namesrv, "admin");
            admin.start();
        }
        return admin;
    }

    void shutdown() {
        if (admin != null) {
            admin.shutdown();
        }
    }

    /** A message by its offset message id, which names the broker and the place in its log. */
    void view(Params params, Reply reply) throws Exception {
        MessageExt message = admin().viewMessage(params.text("topic"), params.text("msgId"));
        reply.event("message", Messages.message(message));
    }

    /** A message by the unique id that its producer gave it. */
    void queryUnique(Params params, Reply reply) throws Exception {
        MessageExt message = senders.producer("interop-query").getDefaultMQProducerImpl()
            .getMqClientFactory().getMQAdminImpl()
            .queryMessageByUniqKey(params.text("topic"), params.text("msgId"));
        if (message != null) {
            reply.event("message", Messages.message(message));
        }
    }

    /** Messages by key within the times given. */
    void queryKey(Params params, Reply reply) throws Exception {
        var result = admin().queryMessage(params.text("topic"), params.text("key"),
            params.number("max", 32), params.longNumber("begin", 0),
            params.longNumber("end", Long.MAX_VALUE));
        reply.event("index",
            Map.of("lastUpdateTimestamp", result.getIndexLastUpdateTimestamp()));
        for (MessageExt message : result.getMessageList()) {
            reply.event("message", Messages.message(message));
        }
    }

    /** Smallest and largest offset and first store time of each queue. */
    void offsets(Params params, Reply reply) throws Exception {
        for (MessageQueue queue : admin().examineTopicStats(params.text("topic"))
            .getOffsetTable().keySet()) {
            Map<String, Object> fields = Messages.queue(queue);
            fields.put("minOffset", admin().minOffset(queue));
            fields.put("maxOffset", admin().maxOffset(queue));
            fields.put("earliestStoreTime", admin().earliestMsgStoreTime(queue));
            if (params.longNumber("timestamp", -1) >= 0) {
                fields.put("searchOffset",
                    admin().searchOffset(queue, params.longNumber("timestamp", -1)));
            }
            reply.event("offsets", fields);
        }
    }

    /** Makes a topic on every master and waits until clients would see it there. */
    void createTopic(Params params, Reply reply) throws Exception {
        TopicConfig config = new TopicConfig(params.text("topic"));
        config.setReadQueueNums(params.number("queues", 4));
        config.setWriteQueueNums(params.number("queues", 4));
        config.setPerm(params.number("perm", 6));
        Map<String, String> masters = masters();
        for (String address : masters.values()) {
            admin().createAndUpdateTopicConfig(address, config);
            reply.event("created", Map.of("broker", address));
        }
        long deadline = System.nanoTime() + ROUTE_WAIT_S * 1_000_000_000L;
        while (!isListed(config, masters.keySet())) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no route for " + config.getTopicName());
            }
            Thread.sleep(20);
        }
    }

    /** Whether the name server has heard of a topic, which a broker tells it after its answer. */
    private boolean isListed(TopicConfig config, Set<String> brokers) throws Exception {
        try {
            return admin().examineTopicRouteInfo(config.getTopicName()).getQueueDatas().stream()
                .filter(queue -> queue.getWriteQueueNums() == config.getWriteQueueNums())
                .map(queue -> queue.getBrokerName())
                .collect(Collectors.toSet()).containsAll(brokers);
        } catch (MQClientException e) {
            return false;
        }
    }

    /** The queue numbers and the permission of the topic in the name server's route. */
    void route(Params params, Reply reply) throws Exception {
        var route = admin().examineTopicRouteInfo(params.text("topic"));
        for (var queue : route.getQueueDatas()) {
            Map<String, Object> fields = new HashMap<>();
            fields.put("brokerName", queue.getBrokerName());
            fields.put("readQueueNums", queue.getReadQueueNums());
            fields.put("writeQueueNums", queue.getWriteQueueNums());
            fields.put("perm", queue.getPerm());
            reply.event("route", fields);
        }
    }

    void cluster(Reply reply) throws Exception {
        reply.event("cluster", Map.of("brokers", brokers()));
    }

    void topics(Reply reply) throws Exception {
        reply.event("topics", Map.of("names", admin().fetchAllTopicList().getTopicList()));
    }

    /** The group's offset and the broker's offset of each queue. */
    void consumeStats(Params params, Reply reply) throws Exception {
        var stats = admin().examineConsumeStats(params.text("group"), params.text("topic"));
        for (var entry : stats.getOffsetTable().entrySet()) {
            Map<String, Object> fields = Messages.queue(entry.getKey());
            fields.put("brokerOffset", entry.getValue().getBrokerOffset());
            fields.put("consumerOffset", entry.getValue().getConsumerOffset());
            reply.event("consumeStats", fields);
        }
    }

    /** The master of each broker, once each has one: nobody else takes topics and groups. */
    Map<String, String> masters() throws Exception {
        long deadline = System.nanoTime() + ROUTE_WAIT_S * 1_000_000_000L;
        while (true) {
            Map<String, String> addresses = new TreeMap<>();
            Set<String> without = new TreeSet<>();
            for (var broker : admin().examineBrokerClusterInfo().getBrokerAddrTable().values()) {
                String address = broker.getBrokerAddrs().get(MixAll.MASTER_ID);
                if (address == null) {
                    without.add(broker.getBrokerName());
                } else {
                    addresses.put(broker.getBrokerName(), address);
                }
            }
            if (without.isEmpty() && !addresses.isEmpty()) {
                return addresses;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(
                    "masters: " + addresses.keySet() + ", brokers without one: " + without);
            }
            Thread.sleep(20);
        }
    }

    private Map<String, String> brokers() throws Exception {
        Map<String, String> addresses = new TreeMap<>();
        for (var broker : admin().examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            addresses.put(broker.getBrokerName(), broker.selectBrokerAddr());
        }
        if (addresses.isEmpty()) {
            throw new IllegalStateException("no broker is registered");
        }
        return addresses;
    }
}
