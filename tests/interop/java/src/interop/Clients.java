package interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** What all clients of this process have in common. */
final class Clients {
    /**
     * How long a client waits for the answers to its own questions, for routes or members. The
     * tests say it where a busy disk or machine must not make a question fail.
     */
    static final int API_TIMEOUT_MS =
        Integer.getInteger("interop.apiTimeoutMillis", new ClientConfig().getMqClientApiTimeout());

    private Clients() {
    }

    /** Signs requests of producers and push consumers where the tests say as whom; else null. */
    static RPCHook signing() {
        String accessKey = System.getProperty("interop.accessKey");
        return accessKey == null ? null : new AclClientRPCHook(
            new SessionCredentials(accessKey, System.getProperty("interop.secretKey")));
    }

    /** Gives a client that is not started yet its name server and the name of its instance. */
    static <C extends ClientConfig> C configured(C client, String namesrv, String instance) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(instance);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        return client;
    }
}
