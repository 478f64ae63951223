package interop;

import org.apache.rocketmq.client.ClientConfig;

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

    /** Gives a client that is not started yet its name server and the name of its instance. */
    static <C extends ClientConfig> C configured(C client, String namesrv, String instance) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(instance);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        return client;
    }
}
