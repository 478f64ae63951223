package interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The commands {@code transaction} and {@code transaction_stop}. */
final class Transactions {
    private final String namesrv;
    private final Map<Long, TransactionMQProducer> running = new ConcurrentHashMap<>();

    Transactions(String namesrv) {
        this.namesrv = namesrv;
    }

    /**
     * Starts a transaction producer and sends {@code count} messages with the outcome
     * {@code local}; then each check-back is an event until {@code transaction_stop}. The n-th
     * check of a message is answered with the n-th of {@code checks}, later ones with the last.
     */
    void start(long id, Params params, Reply reply) throws Exception {
        TransactionMQProducer producer = Clients.configured(
            new TransactionMQProducer(params.text("group")), namesrv, "transaction-" + id);
        producer.setSendMsgTimeout(Senders.SEND_TIMEOUT_MS);
        // One that comes too early for the route is lost, and the next one is due after 30 s.
        producer.setHeartbeatBrokerInterval(1000);
        producer.setPollNameServerInterval(1000);
        producer.setTransactionListener(new Outcomes(params, reply));
        producer.start();
        running.put(id, producer);
        // Brokers ask only whom they know from a heartbeat, and there is none without a route.
        MQClientInstance instance = producer.getDefaultMQProducerImpl().getMqClientFactory();
        instance.updateTopicRouteInfoFromNameServer(params.text("topic"));
        instance.sendHeartbeatToAllBrokerWithLock();
        for (int i = 0; i < params.number("count", 1); i++) {
            TransactionSendResult result =
                producer.sendMessageInTransaction(Senders.message(params, i), null);
            Map<String, Object> fields = Messages.sendResult(result);
            fields.put("transactionId", result.getTransactionId());
            fields.put("localState", result.getLocalTransactionState().name());
            reply.event("sent", fields);
        }
    }

    void stop(Params params) {
        TransactionMQProducer producer = running.remove(params.longNumber("handle", -1));
        if (producer == null) {
            throw new IllegalArgumentException("nothing runs as " + params.text("handle"));
        }
        producer.shutdown();
    }

    void shutdown() {
        running.values().forEach(TransactionMQProducer::shutdown);
    }

    private static final class Outcomes implements TransactionListener {
        private final Reply reply;
        private final LocalTransactionState local;
        private final List<String> answers;
        private final Map<String, Integer> checks = new ConcurrentHashMap<>();

        Outcomes(Params params, Reply reply) {
            this.reply = reply;
            local = LocalTransactionState.valueOf(params.text("local", "UNKNOW"));
            answers = List.of(params.text("checks", "UNKNOW").split(","));
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return local;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int number = checks.merge(message.getTransactionId(), 1, Integer::sum);
            String answer = answers.get(Math.min(number, answers.size()) - 1);
            try {
                Map<String, Object> fields = Messages.message(message);
                fields.put("transactionId", message.getTransactionId());
                fields.put("number", number);
                fields.put("answer", answer);
                reply.event("check", fields);
            } catch (Exception e) {
                reply.event("error", Map.of("text", e.toString()));
            }
            return LocalTransactionState.valueOf(answer);
        }
    }
}
