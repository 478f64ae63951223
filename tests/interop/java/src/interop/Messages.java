package interop;

import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Turns the client's values into maps for {@link Reply}. */
final class Messages {
    /** Bodies up to this length are printed as they are; of longer ones only size and SHA-256. */
    private static final int PRINTED_BODY_BYTES = 2048;

    private Messages() {
    }

    static Map<String, Object> message(MessageExt message) throws Exception {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("topic", message.getTopic());
        out.put("queueId", message.getQueueId());
        out.put("queueOffset", message.getQueueOffset());
        out.put("commitLogOffset", message.getCommitLogOffset());
        out.put("msgId", message.getMsgId());
        out.put("offsetMsgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        out.put("keys", message.getKeys());
        out.put("tags", message.getTags());
        out.put("properties", message.getProperties());
        byte[] body = message.getBody();
        out.put("bodySize", body.length);
        out.put("bodySha256", sha256(body));
        if (body.length <= PRINTED_BODY_BYTES) {
            out.put("body", Base64.getEncoder().encodeToString(body));
        }
        out.put("bodyCrc", message.getBodyCRC());
        out.put("flag", message.getFlag());
        out.put("sysFlag", message.getSysFlag());
        out.put("bornHost", host(message.getBornHost()));
        out.put("bornTimestamp", message.getBornTimestamp());
        out.put("storeHost", host(message.getStoreHost()));
        out.put("storeTimestamp", message.getStoreTimestamp());
        out.put("storeSize", message.getStoreSize());
        out.put("reconsumeTimes", message.getReconsumeTimes());
        out.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        out.put("transactionId", message.getTransactionId());
        return out;
    }

    static Map<String, Object> sendResult(SendResult result) {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("status", result.getSendStatus().name());
        out.put("msgId", result.getMsgId());
        out.put("offsetMsgId", result.getOffsetMsgId());
        out.putAll(queue(result.getMessageQueue()));
        out.put("queueOffset", result.getQueueOffset());
        out.put("regionId", result.getRegionId());
        out.put("traceOn", result.isTraceOn());
        return out;
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("topic", queue.getTopic());
        out.put("brokerName", queue.getBrokerName());
        out.put("queueId", queue.getQueueId());
        return out;
    }

    static String sha256(byte[] body) throws Exception {
        StringBuilder hex = new StringBuilder();
        for (byte b : MessageDigest.getInstance("SHA-256").digest(body)) {
            hex.append(String.format("%02x", b));
        }
        return hex.toString();
    }

    /** Sets an enum-typed option whose enum sits in another package in each release line. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void setEnum(Object target, String setter, String value) throws Exception {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1
                && method.getParameterTypes()[0].isEnum()) {
                method.invoke(target, Enum.valueOf((Class) method.getParameterTypes()[0], value));
                return;
            }
        }
        throw new IllegalArgumentException("no method " + setter);
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }
}
