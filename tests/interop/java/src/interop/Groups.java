package interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The commands that an administrator gives for a consumer group. */
final class Groups {
    private final Queries queries;

    Groups(Queries queries) {
        this.queries = queries;
    }

    /** Sets the group to where the topic stood at {@code timestamp}. */
    void resetOffset(Params params, Reply reply) throws Exception {
        Map<MessageQueue, Long> offsets = queries.admin().resetOffsetByTimestamp(
            params.text("topic"), params.text("group"), params.longNumber("timestamp", 0), true);
        offsets.forEach((queue, queueOffset) -> {
            Map<String, Object> fields = Messages.queue(queue);
            fields.put("queueOffset", queueOffset);
            reply.event("reset", fields);
        });
    }

    void cloneOffset(Params params) throws Exception {
        queries.admin().cloneGroupOffset(params.text("source"), params.text("destination"),
            params.text("topic"), params.flag("offline"));
    }

    /** Has the client consume the message at once and prints what its listener answered. */
    void consumeDirectly(Params params, Reply reply) throws Exception {
        var result = queries.admin().consumeMessageDirectly(params.text("group"),
            params.text("client"), params.text("topic"), params.text("msgId"));
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("result", result.getConsumeResult());
        fields.put("order", result.isOrder());
        fields.put("remark", result.getRemark());
        reply.event("consumed", fields);
    }

    /** What a member tells of itself: properties, subscriptions and queues. */
    void runningInfo(Params params, Reply reply) throws Exception {
        var info = queries.admin().getConsumerRunningInfo(
            params.text("group"), params.text("client"), params.flag("jstack"));
        Map<String, String> properties = new TreeMap<>();
        info.getProperties().forEach((name, value) ->
            properties.put(name.toString(), value.toString()));
        Map<String, String> subscriptions = new TreeMap<>();
        info.getSubscriptionSet().forEach(subscription ->
            subscriptions.put(subscription.getTopic(), subscription.getSubString()));
        List<Object> queues = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(info.getMqTable().keySet())) {
            Map<String, Object> fields = Messages.queue(queue);
            fields.put("commitOffset", info.getMqTable().get(queue).getCommitOffset());
            queues.add(fields);
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("properties", properties);
        fields.put("subscriptions", subscriptions);
        fields.put("queues", queues);
        fields.put("jstack", info.getJstack() != null && !info.getJstack().isBlank());
        reply.event("running", fields);
    }

    /** The offsets that each member of the group holds for the queues of the topic. */
    void consumerStatus(Params params, Reply reply) throws Exception {
        var status = queries.admin().getConsumeStatus(
            params.text("topic"), params.text("group"), params.text("client", ""));
        for (var member : status.entrySet()) {
            for (var queue : new TreeMap<>(member.getValue()).entrySet()) {
                Map<String, Object> fields = Messages.queue(queue.getKey());
                fields.put("client", member.getKey());
                fields.put("queueOffset", queue.getValue());
                reply.event("status", fields);
            }
        }
    }

    /** The members of the group that are online. */
    void members(Params params, Reply reply) throws Exception {
        var connections = queries.admin().examineConsumerConnectionInfo(params.text("group"));
        for (var connection : connections.getConnectionSet()) {
            reply.event("member", Map.of(
                "client", connection.getClientId(),
                "language", connection.getLanguage(),
                "consumeType", connections.getConsumeType(),
                "messageModel", connections.getMessageModel()));
        }
    }

    /** Creates the group or changes it; the class of its settings moved between the lines. */
    void createGroup(Params params) throws Exception {
        DefaultMQAdminExt admin = queries.admin();
        for (var method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals("createAndUpdateSubscriptionGroupConfig")) {
                Class<?> type = method.getParameterTypes()[1];
                Object config = type.getConstructor().newInstance();
                type.getMethod("setGroupName", String.class)
                    .invoke(config, params.text("group"));
                type.getMethod("setConsumeEnable", boolean.class)
                    .invoke(config, !params.flag("closed"));
                type.getMethod("setRetryMaxTimes", int.class)
                    .invoke(config, params.number("retryMaxTimes", 16));
                type.getMethod("setRetryQueueNums", int.class)
                    .invoke(config, params.number("retryQueueNums", 1));
                for (String address : queries.masters().values()) {
                    method.invoke(admin, address, config);
                }
                return;
            }
        }
        throw new IllegalStateException("this client cannot create groups");
    }
}
