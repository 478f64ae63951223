package interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The listener of {@code push}: prints each message and fails it as often as it was told.
 *
 * <p>{@code fail} is how many deliveries of one message fail, {@code failKeys} (comma-separated)
 * limits that to some messages, {@code level} is the answer's delay level, {@code suspend} the
 * pause of an orderly queue in milliseconds.
 */
final class Listener {
    private final Reply reply;
    private final int failures;
    private final Set<String> failKeys;
    private final int level;
    private final long suspendMs;
    private final Map<String, Integer> deliveries = new ConcurrentHashMap<>();

    Listener(Params params, Reply reply) {
        this.reply = reply;
        failures = params.number("fail", 0);
        failKeys = params.list("failKeys");
        level = params.number("level", 0);
        suspendMs = params.longNumber("suspend", 100);
    }

    ConsumeConcurrentlyStatus concurrently(List<MessageExt> messages,
        ConsumeConcurrentlyContext context) {
        if (consume(messages)) {
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
        context.setDelayLevelWhenNextConsume(level);
        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    ConsumeOrderlyStatus orderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
        if (consume(messages)) {
            return ConsumeOrderlyStatus.SUCCESS;
        }
        context.setSuspendCurrentQueueTimeMillis(suspendMs);
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
    }

    private boolean consume(List<MessageExt> messages) {
        boolean consumed = true;
        for (MessageExt message : messages) {
            boolean failed = deliveries.merge(message.getMsgId(), 1, Integer::sum) <= failures
                && (failKeys.isEmpty() || failKeys.contains(message.getKeys()));
            try {
                Map<String, Object> fields = new LinkedHashMap<>(Messages.message(message));
                fields.put("failed", failed);
                fields.put("receivedTimestamp", System.currentTimeMillis());
                reply.event("message", fields);
            } catch (Exception e) {
                reply.event("error", Map.of("text", e.toString()));
                return false;
            }
            consumed = consumed && !failed;
        }
        return consumed;
    }
}
