package interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The commands {@code request} and {@code answer}. */
final class Requests {
    private final Senders senders;
    private final Consumers consumers;

    Requests(Senders senders, Consumers consumers) {
        this.senders = senders;
        this.consumers = consumers;
    }

    /** Sends one message as a request and prints the reply that comes within {@code ttl} ms. */
    void request(Params params, Reply reply) throws Exception {
        Message answer = senders.producer(params.text("group"))
            .request(Senders.message(params, 0), params.longNumber("ttl", 10_000));
        reply.event("reply", Messages.message((MessageExt) answer));
    }

    /**
     * Starts a push consumer until {@code stop} that answers each message with "re:" and its body;
     * each request and what became of its reply are events.
     */
    void answer(long id, Params params, Reply reply) throws Exception {
        DefaultMQProducer producer = senders.producer(params.text("group") + "-producer");
        consumers.keep(id, consumers.start(params, (messages, context) -> {
            for (MessageExt message : messages) {
                answerOne(producer, message, reply);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
    }

    private static void answerOne(DefaultMQProducer producer, MessageExt message, Reply reply) {
        try {
            reply.event("message", Messages.message(message));
            String text = "re:" + new String(message.getBody(), StandardCharsets.UTF_8);
            Message answer = MessageUtil.createReplyMessage(
                message, text.getBytes(StandardCharsets.UTF_8));
            answer.putUserProperty("colour", "blue");
            reply.event("replied", Map.of("status", producer.send(answer).getSendStatus().name()));
        } catch (Exception e) {
            reply.event("refused", InteropClient.describe(e));
        }
    }
}
