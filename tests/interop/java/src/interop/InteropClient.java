package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * A stock RocketMQ client that is driven by text, so that one JVM serves many tests.
 *
 * <p>Usage: {@code InteropClient NAMESRV [COMMAND QUERY]}. Without a command it reads lines
 * {@code NUMBER COMMAND QUERY} from its input, runs them side by side, and ends when the input
 * does. QUERY is a URL query string. Each answer is a JSON line with the number of its command;
 * the last line for a number has the event "done" or "error".
 */
public final class InteropClient {
    private final Senders senders;
    private final Consumers consumers;
    private final Queries queries;
    private final Groups groups;
    private final Requests requests;
    private final Transactions transactions;
    private final Map<Long, Steady> steady = new ConcurrentHashMap<>();

    private InteropClient(String namesrv) {
        senders = new Senders(namesrv);
        consumers = new Consumers(namesrv);
        queries = new Queries(namesrv, senders);
        groups = new Groups(queries);
        requests = new Requests(senders, consumers);
        transactions = new Transactions(namesrv);
    }

    public static void main(String[] args) throws Exception {
        InteropClient client = new InteropClient(args[0]);
        if (args.length > 1) {
            client.run(0, args[1], args.length > 2 ? args[2] : "");
        } else {
            client.serve();
        }
        client.consumers.shutdown();
        client.transactions.shutdown();
        client.senders.shutdown();
        client.queries.shutdown();
        // Some threads of the client libraries are not daemons.
        System.exit(0);
    }

    private void serve() throws Exception {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        new Reply(0).event("ready", Map.of());
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", 3);
            workers.execute(() ->
                run(Long.parseLong(words[0]), words[1], words.length > 2 ? words[2] : ""));
        }
        workers.shutdownNow();
    }

    private void run(long id, String command, String query) {
        Reply reply = new Reply(id);
        try {
            dispatch(id, command, new Params(query), reply);
            reply.event("done", Map.of());
        } catch (Throwable e) {
            reply.event("error", describe(e));
        }
    }

    private void dispatch(long id, String command, Params params, Reply reply) throws Exception {
        switch (command) {
            case "send" -> senders.send(params, reply);
            case "produce" -> Flood.run(senders.producer(params.text("group")), params, reply);
            case "steady" ->
                steady.put(id, new Steady(senders.producer(params.text("group")), params));
            case "steady_look" -> steady.get(params.longNumber("handle", 0)).look();
            case "steady_await" -> steady.get(params.longNumber("handle", 0)).await(params);
            case "steady_stop" -> steady.remove(params.longNumber("handle", 0)).stop(reply);
            case "push" -> consumers.push(id, params, reply);
            case "drain" -> consumers.drain(id, params, reply);
            case "await_queues" -> consumers.awaitQueues(params);
            case "await_stored" -> consumers.awaitStored(params);
            case "await_places" -> consumers.awaitPlaces(params);
            case "stop" -> consumers.stop(params);
            case "suspend" -> consumers.suspend(params);
            case "resume" -> consumers.resume(params);
            case "refresh" -> consumers.refresh(params);
            case "transaction" -> transactions.start(id, params, reply);
            case "transaction_stop" -> transactions.stop(params);
            case "request" -> requests.request(params, reply);
            case "answer" -> requests.answer(id, params, reply);
            case "pull" -> consumers.pull(params, reply);
            case "lite" -> consumers.lite(params, reply);
            case "committed" -> consumers.committed(params, reply);
            case "view" -> queries.view(params, reply);
            case "query_unique" -> queries.queryUnique(params, reply);
            case "query_key" -> queries.queryKey(params, reply);
            case "offsets" -> queries.offsets(params, reply);
            case "create_topic" -> queries.createTopic(params, reply);
            case "route" -> queries.route(params, reply);
            case "cluster" -> queries.cluster(reply);
            case "topics" -> queries.topics(reply);
            case "consume_stats" -> queries.consumeStats(params, reply);
            case "create_group" -> groups.createGroup(params);
            case "members" -> groups.members(params, reply);
            case "reset_offset" -> groups.resetOffset(params, reply);
            case "clone_offset" -> groups.cloneOffset(params);
            case "consume_directly" -> groups.consumeDirectly(params, reply);
            case "running_info" -> groups.runningInfo(params, reply);
            case "consumer_status" -> groups.consumerStatus(params, reply);
            default -> throw new IllegalArgumentException("unknown command " + command);
        }
    }

    static Map<String, Object> describe(Throwable failure) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("kind", failure.getClass().getSimpleName());
        fields.put("text", String.valueOf(failure.getMessage()));
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                fields.put("code", ((MQBrokerException) cause).getResponseCode());
            } else if (cause instanceof MQClientException) {
                fields.putIfAbsent("code", ((MQClientException) cause).getResponseCode());
            }
        }
        return fields;
    }
}
