/*
 * loadgen: one-threaded load generator for brokers that speak RocketMQ's remoting protocol.
 *
 *   loadgen send       closed loop of code 310, --connections x --depth requests outstanding
 *   loadgen transaction  the same, each message a half message (310) that is then committed (37)
 *   loadgen batch      closed loop of code 320, --batch messages a request
 *   loadgen pull       closed loop of code 11 over all that the queues hold, --pull-max a request
 *   loadgen timetable  --rate sends a second by the clock and a long-polling consumer of all queues
 *   loadgen idle       --connections with one heartbeat each, held until stdin ends
 *   loadgen first      connects and sends every 2 ms until one message is accepted
 *
 * `--delay LEVEL` sends delayed messages; `--sql TEXT` pulls with a condition, which must hold for
 * every message; `--broker NAME` names another broker than broker-a in sends.
 *
 * It prints one line of JSON. Requests look like a Java client's: JSON headers, the 14 short fields
 * of SEND_MESSAGE_V2, KEYS, UNIQ_KEY, TAGS and WAIT; opaque, bornTimestamp and keys change in each.
 * Every answer is parsed and checked: a frame that answers nothing, cut records or a gap between
 * queue offsets end the run with exit code 2. Answers with a code other than 0 are counted by code
 * from the first request on; everything else is counted in the measuring window only.
 * Latencies of `timetable` begin when a message was due, not when it was sent, and every message
 * that was due in the window counts, however long after it the answer comes: a stall at the end of
 * the window is as long as one before.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BATCH = 1024, MAX_QUEUES = 1024, MAX_FRAME = 16 << 20, MAX_CODE = 4096 };
enum { STAMP_DIGITS = 19, SEQUENCE_DIGITS = 12, OPAQUE_DIGITS = 10, BORN_DIGITS = 13 };
enum { RECORD_MIN = 91, DRAIN_S = 5, LONG_DRAIN_S = 60, HEARTBEATS_S = 60, SUSPEND_MS = 15000 };
enum { SEND_MESSAGE_V2 = 310, SEND_BATCH_MESSAGE = 320, PULL_MESSAGE = 11, HEART_BEAT = 34 };
enum { END_TRANSACTION = 37, TRANSACTION_PREPARED = 4, TRANSACTION_COMMIT = 8 };
enum { GET_MAX_OFFSET = 30, GET_MIN_OFFSET = 31, PULL_NOT_FOUND = 19 };

/* Opaques have ten digits from the first to the last, so that a header's length never changes. */
enum { FIRST_OPAQUE = 1000000000 };

static const char *mode, *topic = "bench", *sql, *broker = "broker-a";
static struct {
    double port, queues, connections, depth, batch, pull_max, body, rate;
    double delay, server_pid, warmup, seconds, count; /* count: send so many messages and stop */
} option = {.queues = 16, .connections = 1, .depth = 1, .batch = 32, .pull_max = 32, .body = 1024,
            .rate = 1000, .warmup = 1, .seconds = 5};
static int queue_count, messages_per_send;
static bool batching, transacting;

static void *grow(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (!memory) errx(2, "no memory for %zu bytes", bytes);
    return memory;
}

/* ---- time and CPU --------------------------------------------------------------------------- */

static int64_t clock_ns(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time)) err(2, "clock");
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static int64_t later_ns(double seconds) { return now_ns() + (int64_t)(seconds * 1e9); }

struct meters {
    int64_t time_ns, own_cpu_ns, server_cpu_ns;
};

/* The server's process clock is finer than the 10 ms ticks of /proc/PID/stat. */
static struct meters read_meters(void) {
    clockid_t server;
    if (option.server_pid && clock_getcpuclockid((pid_t)option.server_pid, &server))
        errx(2, "the server is gone");
    return (struct meters){now_ns(), clock_ns(CLOCK_PROCESS_CPUTIME_ID),
                           option.server_pid ? clock_ns(server) : 0};
}

/* ---- latency histogram: 64 buckets for each power of two, so within 1.6 % -------------------- */

struct histogram {
    uint64_t total;
    int64_t max_ns;
    uint32_t buckets[64 * 58];
};
static struct histogram answer_times, end_to_end_times;

static void histogram_add(struct histogram *histogram, int64_t elapsed_ns) {
    uint64_t value = elapsed_ns < 64 ? 64 : (uint64_t)elapsed_ns;
    int shift = 63 - __builtin_clzll(value) - 6;
    histogram->buckets[shift * 64 + (int)(value >> shift) - 64]++;
    histogram->total++;
    if (elapsed_ns > histogram->max_ns) histogram->max_ns = elapsed_ns;
}

static double histogram_us(const struct histogram *histogram, double quantile) {
    uint64_t rank = (uint64_t)(quantile * (double)histogram->total), seen = 0;
    for (int i = 0; i < 64 * 58; i++) {
        seen += histogram->buckets[i];
        if (seen > rank) return (double)((uint64_t)(64 + i % 64) << (i / 64)) / 1000;
    }
    return 0;
}

/* ---- frames to send -------------------------------------------------------------------------- */

static void put_be32(char *at, size_t value) {
    uint32_t bytes = htonl((uint32_t)value);
    memcpy(at, &bytes, 4);
}

static uint32_t be32(const char *at) {
    uint32_t bytes;
    memcpy(&bytes, at, 4);
    return ntohl(bytes);
}

static int64_t be64(const char *at) { return (int64_t)((uint64_t)be32(at) << 32 | be32(at + 4)); }

static void put_digits(char *at, int64_t value, int digits) {
    for (char *digit = at + digits - 1; digit >= at; digit--, value /= 10)
        *digit = (char)('0' + value % 10);
}

/* Send requests are templates patched in place: a header for each queue and one body. A single
 * message's keys are in the header's properties, those of a batch in each item of the body. */
static struct template {
    char *bytes;
    size_t length, opaque_at, born_at, key_at, uniq_key_at;
} headers[MAX_QUEUES], body;
static size_t item_bytes, stamp_at;
static char run_id[17]; /* Keys of two runs against one broker must differ. */

static size_t find(const char *text, const char *marker) {
    const char *found = strstr(text, marker);
    if (!found) errx(2, "marker %s is missing", marker);
    return (size_t)(found - text) + strlen(marker);
}

/* Prints a message's properties; `set` and `end` separate them (raw, or escaped for JSON). */
static void print_properties(char *text, size_t capacity, const char *set, const char *end) {
    int used = snprintf(
        text, capacity, "KEYS%s%sk:000000000000%sUNIQ_KEY%s7F00%s000000000000%sWAIT%strue%s"
        "TAGS%sTagA", set, run_id, end, set, run_id, end, set, end, set);
    if (option.delay)
        used += snprintf(text + used, capacity - (size_t)used, "%sDELAY%s%d", end, set,
                         (int)option.delay);
    if (transacting)
        snprintf(text + used, capacity - (size_t)used, "%sTRAN_MSG%strue%sPGROUP%sbench_producer",
                 end, set, end, set);
}

static void find_keys(struct template *template, const char *text, size_t base) {
    template->key_at = base + find(text, "k:");
    template->uniq_key_at = template->key_at + find(text + template->key_at - base, run_id);
}

static void build_header(struct template *header, int queue) {
    char properties[256] = "WAIT\\u0001true", json[1024];
    if (!batching) print_properties(properties, sizeof properties, "\\u0001", "\\u0002");
    size_t length = (size_t)snprintf(
        json, sizeof json,
        "{\"code\":%d,\"extFields\":{\"a\":\"bench_producer\",\"b\":\"%s\",\"c\":\"TBW102\","
        "\"d\":\"4\",\"e\":\"%d\",\"f\":\"%d\",\"g\":\"1000000000000\",\"h\":\"0\",\"i\":\"%s\","
        "\"j\":\"0\",\"k\":\"false\",\"l\":\"0\",\"m\":\"%s\",\"n\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":1000000000,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"version\":409}",
        batching ? SEND_BATCH_MESSAGE : SEND_MESSAGE_V2, topic, queue,
        transacting ? TRANSACTION_PREPARED : 0, properties, batching ? "true" : "false", broker);
    header->length = length + 8;
    header->bytes = grow(NULL, header->length);
    put_be32(header->bytes, 4 + length + body.length);
    put_be32(header->bytes + 4, length);
    memcpy(header->bytes + 8, json, length);
    header->opaque_at = 8 + find(json, "\"opaque\":");
    header->born_at = 8 + find(json, "\"g\":\"");
    if (!batching) find_keys(header, json, 8);
}

static void build_body(void) {
    char properties[256];
    size_t message_bytes = (size_t)option.body;
    print_properties(properties, sizeof properties, "\001", "\002");
    size_t properties_length = strlen(properties);
    stamp_at = batching ? 20 : 0;
    item_bytes = message_bytes + (batching ? 22 + properties_length : 0);
    body.length = item_bytes * (size_t)messages_per_send;
    body.bytes = calloc(1, body.length);
    for (int i = 0; i < messages_per_send; i++) {
        char *item = body.bytes + item_bytes * (size_t)i, *end = item + stamp_at + message_bytes;
        uint32_t seed = (uint32_t)i + 1;
        for (char *at = item + stamp_at; at < end; at++, seed = seed * 1664525 + 1013904223)
            *at = (char)('a' + (seed >> 16) % 26); /* no digits: the stamp must end */
        if (!batching) break;
        put_be32(item, item_bytes); /* magic, CRC and flag of a batch's items are 0 */
        put_be32(item + 16, message_bytes);
        end[0] = (char)(properties_length >> 8);
        end[1] = (char)properties_length;
        memcpy(end + 2, properties, properties_length);
    }
    if (batching) find_keys(&body, properties, stamp_at + message_bytes + 2);
}

static void build_templates(void) {
    snprintf(run_id, sizeof run_id, "%016" PRIX64, clock_ns(CLOCK_REALTIME));
    build_body();
    for (int queue = 0; queue < queue_count; queue++) build_header(&headers[queue], queue);
}

/* Makes the templates of a queue the next request; `stamp` starts every message's body. */
static void patch(struct template *header, int32_t opaque, int64_t stamp) {
    static int64_t sequence;
    struct template *keys = batching ? &body : header;
    put_digits(header->bytes + header->opaque_at, opaque, OPAQUE_DIGITS);
    put_digits(header->bytes + header->born_at, clock_ns(CLOCK_REALTIME) / 1000000, BORN_DIGITS);
    for (int i = 0; i < messages_per_send; i++) {
        size_t item = item_bytes * (size_t)i;
        put_digits(keys->bytes + item + keys->key_at, sequence++, SEQUENCE_DIGITS);
        memcpy(keys->bytes + item + keys->uniq_key_at, keys->bytes + item + keys->key_at,
               SEQUENCE_DIGITS);
        put_digits(body.bytes + item + stamp_at, stamp, STAMP_DIGITS);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

struct answer {
    int64_t code, opaque, flag, offset, next_begin_offset, queue_offset, physical_offset;
    const char *remark, *body; /* the remark goes up to the next quote */
    size_t body_length;
};

/* Keeps a field that somebody needs; depth 1 are the command's own, depth 2 the extFields. */
static void take_field(struct answer *answer, int depth, const char *key, const char *value) {
    static const char *const names[] = {"code\"", "opaque\"", "flag\"", "offset\"",
                                        "nextBeginOffset\"", "queueOffset\""};
    int64_t *fields[] = {&answer->code, &answer->opaque, &answer->flag, &answer->offset,
                         &answer->next_begin_offset, &answer->queue_offset};
    for (int i = 0; i < 6; i++)
        if (depth == (i < 3 ? 1 : 2) && !strncmp(key, names[i], strlen(names[i])))
            *fields[i] = strtoll(value, NULL, 10);
    if (depth == 1 && !strncmp(key, "remark\"", 7)) answer->remark = value;
    size_t id_digits = strcspn(value, "\"");
    if (depth == 2 && !strncmp(key, "msgId\"", 6) && id_digits >= 16) /* host, then offset */
        answer->physical_offset = strtoll(value + id_digits - 16, NULL, 16);
}

static const char *string_end(const char *at, const char *end) {
    while (at < end && *at != '"') at += *at == '\\' ? 2 : 1;
    if (at >= end) errx(2, "answer header with an open string");
    return at;
}

static void parse_header(const char *at, const char *end, struct answer *answer) {
    int depth = 0;
    while (at < end) {
        char byte = *at++;
        depth += (byte == '{') - (byte == '}');
        if (byte != '"') continue;
        const char *key = at;
        for (at = string_end(at, end) + 1; at < end && (*at == ' ' || *at == ':');) at++;
        if (at == end) break;
        const char *value = *at == '"' ? at + 1 : at;
        if (*at == '"') at = string_end(value, end) + 1;
        take_field(answer, depth, key, value);
    }
    if (depth) errx(2, "answer header is not JSON");
}

/* Splits one complete frame; `length` is what its first four bytes say. */
static struct answer parse_frame(const char *frame, size_t length) {
    struct answer answer = {.code = -1, .opaque = -1, .offset = -1, .next_begin_offset = -1,
                            .queue_offset = -1, .physical_offset = -1, .remark = ""};
    size_t header_length = be32(frame + 4) & 0xFFFFFF;
    if (frame[4]) errx(2, "answer with serialization type %d to a JSON request", frame[4]);
    if (header_length + 4 > length) errx(2, "answer whose header is longer than the frame");
    parse_header(frame + 8, frame + 8 + header_length, &answer);
    if (!(answer.flag & 1)) errx(2, "frame %" PRId64 " is not an answer", answer.opaque);
    if (answer.code < 0 || answer.code >= MAX_CODE) errx(2, "answer code %" PRId64, answer.code);
    answer.body = frame + 8 + header_length;
    answer.body_length = length - 4 - header_length;
    return answer;
}

/* ---- connections ----------------------------------------------------------------------------- */

enum kind { SENDER, PULLER, TAIL, IDLER };

struct slot {
    int64_t started_ns;
    int32_t opaque, generation, queue; /* opaque is 0 while no answer is awaited */
    bool ending; /* the half message is stored and its commit is awaited */
};

static struct connection {
    enum kind kind;
    int fd, index, depth, queue;
    uint32_t interest;
    struct slot *slots;
    int64_t *cursors; /* next queue offset to pull, for each queue */
    char *in, *out;
    size_t in_used, in_capacity, out_used, out_sent, out_capacity;
} *connections;
static int connection_count, epoll_fd;
static int64_t queue_min[MAX_QUEUES], queue_max[MAX_QUEUES];

static struct {
    bool measuring, stopped;
    int outstanding; /* requests without an answer; the tail's long polls do not count */
    int64_t requests, messages, errors[MAX_CODE];
    int64_t issued, acknowledged, delivered; /* messages since the start */
    int64_t timetable_start_ns, due;
    int64_t window_start_ns, window_end_ns; /* of the timetable; messages due later are not sent */
} run;

/* Returns a connected socket, or -1 when nobody listens. */
static int open_socket(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval patience = {.tv_sec = DRAIN_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) err(2, "socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
    return -1;
}

/* Adds a frame of two parts (the second may be empty) to what the connection will write. */
static void enqueue(struct connection *c, const char *head, size_t head_length, const char *tail,
                    size_t tail_length) {
    size_t needed = c->out_used + head_length + tail_length;
    if (needed > c->out_capacity) c->out = grow(c->out, c->out_capacity = needed * 2);
    memcpy(c->out + c->out_used, head, head_length);
    if (tail_length) memcpy(c->out + c->out_used + head_length, tail, tail_length);
    c->out_used = needed;
}

static void watch(struct connection *c, int operation, uint32_t interest) {
    struct epoll_event event = {.events = interest, .data.ptr = c};
    c->interest = interest;
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) err(2, "epoll_ctl");
}

static void flush_out(struct connection *c) {
    while (c->out_sent < c->out_used) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_used - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) err(2, "send");
        c->out_sent += (size_t)sent;
    }
    uint32_t interest = c->out_sent < c->out_used ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (interest == EPOLLIN) c->out_sent = c->out_used = 0;
    if (interest != c->interest) watch(c, EPOLL_CTL_MOD, interest);
}

static void add_connection(enum kind kind, int depth) {
    struct connection *c = &connections[connection_count];
    *c = (struct connection){.kind = kind, .index = connection_count++, .depth = depth};
    if ((c->fd = open_socket()) < 0) err(2, "connect");
    c->queue = c->index % queue_count;
    c->slots = calloc((size_t)depth, sizeof *c->slots);
    c->in = grow(NULL, c->in_capacity = 4096);
    if (kind == PULLER || kind == TAIL) {
        size_t bytes = (size_t)queue_count * sizeof *c->cursors;
        c->cursors = memcpy(grow(NULL, bytes), kind == TAIL ? queue_max : queue_min, bytes);
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

/* ---- requests and their answers -------------------------------------------------------------- */

/* Prints a whole frame into 2048 bytes and returns its length. */
static size_t print_frame(char *frame, int32_t opaque, int code, const char *ext_fields,
                          const char *data) {
    size_t length = (size_t)snprintf(
        frame + 8, 2040,
        "{\"code\":%d,\"extFields\":{%s},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}%s",
        code, ext_fields, opaque, data);
    put_be32(frame, 4 + length);
    put_be32(frame + 4, length - strlen(data));
    return length + 8;
}

/* sysFlag: 4 = has a subscription; the tail consumer also suspends (2) and commits (1). */
static size_t print_pull(char *frame, int32_t opaque, int queue, const struct connection *c) {
    char fields[768];
    bool tail = c->kind == TAIL;
    snprintf(fields, sizeof fields,
             "\"commitOffset\":\"%" PRId64 "\",\"consumerGroup\":\"bench_consumer\","
             "\"expressionType\":\"%s\",\"maxMsgNums\":\"%d\",\"queueId\":\"%d\","
             "\"queueOffset\":\"%" PRId64 "\",\"subVersion\":\"0\",\"subscription\":\"%s\","
             "\"suspendTimeoutMillis\":\"%d\",\"sysFlag\":\"%d\",\"topic\":\"%s\"",
             tail ? c->cursors[queue] : 0, sql ? "SQL92" : "TAG", (int)option.pull_max, queue,
             c->cursors[queue], sql ? sql : "*", SUSPEND_MS, tail ? 7 : 4, topic);
    return print_frame(frame, opaque, PULL_MESSAGE, fields, "");
}

static size_t print_heartbeat(char *frame, int32_t opaque, int client) {
    char data[256];
    snprintf(data, sizeof data, "{\"clientID\":\"127.0.0.1@%d#%d\",\"consumerDataSet\":[],"
             "\"producerDataSet\":[{\"groupName\":\"bench_idle\"}]}", (int)getpid(), client);
    return print_frame(frame, opaque, HEART_BEAT, "", data);
}

/* Opaques of a slot are FIRST_OPAQUE + slot + n * depth: an answer finds its slot in any order. */
static void issue(struct connection *c, int index, int64_t started_ns) {
    static int next_queue;
    struct slot *slot = &c->slots[index];
    if (++slot->generation >= (INT32_MAX - FIRST_OPAQUE) / c->depth) slot->generation = 0;
    slot->opaque = FIRST_OPAQUE + slot->generation * c->depth + index;
    slot->started_ns = started_ns;
    run.outstanding += c->kind != TAIL;
    if (c->kind == SENDER) {
        struct template *header = &headers[next_queue];
        next_queue = (next_queue + 1) % queue_count;
        patch(header, slot->opaque, started_ns);
        run.issued += messages_per_send;
        enqueue(c, header->bytes, header->length, body.bytes, body.length);
        return;
    }
    char frame[2048];
    slot->queue = c->kind == TAIL ? index : c->queue;
    size_t length = c->kind == IDLER ? print_heartbeat(frame, slot->opaque, c->index)
                                     : print_pull(frame, slot->opaque, slot->queue, c);
    enqueue(c, frame, length, NULL, 0);
}

/* Tells whether what was due, or was sent, at that time counts when it is answered now. */
static bool counts(int64_t started_ns) {
    if (!run.timetable_start_ns) return run.measuring;
    return started_ns >= run.window_start_ns && started_ns < run.window_end_ns;
}

/* Checks and counts the records of a pull's body; those of a tail consumer are also timed. */
static int take_records(const struct connection *c, int queue, const struct answer *answer,
                        int64_t now) {
    int count = 0;
    for (size_t at = 0; at < answer->body_length; count++) {
        const char *record = answer->body + at;
        size_t left = answer->body_length - at, size = left < RECORD_MIN ? 0 : be32(record);
        if (size < RECORD_MIN || size > left) errx(2, "cut record in a pull of queue %d", queue);
        uint32_t magic = be32(record + 4), sys_flag = be32(record + 36);
        if (magic != 0xDAA320A7 && magic != 0xDAA320AB) errx(2, "record magic %08X", magic);
        if (be32(record + 12) != (uint32_t)queue || be64(record + 20) != c->cursors[queue] + count)
            errx(2, "record %u/%" PRId64 " where queue %d had %" PRId64 " due", be32(record + 12),
                 be64(record + 20), queue, c->cursors[queue] + count);
        at += size;
        if (c->kind != TAIL) continue;
        run.delivered++;
        const char *stamp = record + 88 + (sys_flag & 0x10 ? 12 : 0) + (sys_flag & 0x20 ? 12 : 0);
        int64_t due = strtoll(stamp, NULL, 10);
        if (counts(due)) histogram_add(&end_to_end_times, now - due);
    }
    if (!count) errx(2, "pull of queue %d has code 0 and no message", queue);
    return count;
}

/* Returns a pull's messages and moves the cursor; a puller also turns to its next queue. */
static int take_pull(struct connection *c, int queue, const struct answer *answer, int64_t now) {
    int messages = answer->code ? 0 : take_records(c, queue, answer, now);
    c->cursors[queue] += messages;
    if (messages && answer->next_begin_offset != c->cursors[queue])
        errx(2, "nextBeginOffset %" PRId64 " where %" PRId64 " was due", answer->next_begin_offset,
            c->cursors[queue]);
    if (c->kind == TAIL) { /* without messages it goes where it is sent, as clients do */
        if (answer->code && answer->next_begin_offset >= 0)
            c->cursors[queue] = answer->next_begin_offset;
        return messages;
    }
    if (answer->code || c->cursors[queue] >= queue_max[queue]) c->cursors[queue] = queue_min[queue];
    c->queue += (int)option.connections;
    if (c->queue >= queue_count) c->queue = c->index % queue_count;
    return messages;
}

/* Commits the half message that an answer is about; its slot waits for the answer to that. */
static void end_transaction(struct connection *c, struct slot *slot, const struct answer *half) {
    char frame[2048], fields[768];
    if (half->queue_offset < 0 || half->physical_offset < 0) errx(2, "half message without a place");
    snprintf(fields, sizeof fields,
             "\"commitLogOffset\":\"%" PRId64 "\",\"commitOrRollback\":\"%d\","
             "\"fromTransactionCheck\":\"false\",\"msgId\":\"%s\",\"producerGroup\":"
             "\"bench_producer\",\"topic\":\"%s\",\"tranStateTableOffset\":\"%" PRId64 "\","
             "\"transactionId\":\"%s\"",
             half->physical_offset, TRANSACTION_COMMIT, run_id, topic, half->queue_offset, run_id);
    slot->opaque = (int32_t)half->opaque;
    slot->ending = true;
    run.outstanding++;
    enqueue(c, frame, print_frame(frame, slot->opaque, END_TRANSACTION, fields, ""), NULL, 0);
}

static bool may_issue(void) {
    return !run.stopped && !(option.count && run.issued >= (int64_t)option.count);
}

static void take_answer(struct connection *c, const struct answer *answer, int64_t now) {
    int64_t number = answer->opaque - FIRST_OPAQUE;
    struct slot *slot = &c->slots[number < 0 ? 0 : number % c->depth];
    if (!slot->opaque || slot->opaque != answer->opaque)
        errx(2, "answer with opaque %" PRId64 ", which nobody asked for", answer->opaque);
    slot->opaque = 0;
    run.outstanding -= c->kind != TAIL;
    if (transacting && !slot->ending && answer->code == 0) {
        end_transaction(c, slot, answer);
        return;
    }
    slot->ending = false;
    int messages = c->kind == SENDER && answer->code == 0 ? messages_per_send : 0;
    run.acknowledged += messages;
    if (c->cursors) messages = take_pull(c, slot->queue, answer, now);
    bool poll_ended = c->kind == TAIL && answer->code == PULL_NOT_FOUND;
    if (answer->code && !poll_ended && !run.errors[answer->code]++)
        warnx("first answer with code %" PRId64 ": %.*s", answer->code,
              (int)strcspn(answer->remark, "\""), answer->remark);
    if (c->kind != TAIL && counts(slot->started_ns)) {
        run.requests++;
        run.messages += messages;
        histogram_add(&answer_times, now - slot->started_ns);
    }
    bool closed_loop = c->kind != IDLER && !run.timetable_start_ns && may_issue();
    if (closed_loop || c->kind == TAIL) issue(c, (int)(slot - c->slots), now);
}

static void on_readable(struct connection *c) {
    ssize_t got = recv(c->fd, c->in + c->in_used, c->in_capacity - c->in_used, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) errx(2, "the server closed a connection (%s)", got ? strerror(errno) : "end");
    c->in_used += (size_t)got;
    int64_t now = now_ns();
    size_t at = 0, length;
    for (; c->in_used - at >= 4; at += 4 + length) {
        length = be32(c->in + at);
        if (length < 4 || length > MAX_FRAME - 4) errx(2, "answer of %zu bytes", length);
        if (c->in_used - at - 4 < length) break;
        struct answer answer = parse_frame(c->in + at, length);
        take_answer(c, &answer, now);
    }
    memmove(c->in, c->in + at, c->in_used -= at);
    if (c->in_used * 2 > c->in_capacity) c->in = grow(c->in, c->in_capacity *= 2);
    flush_out(c);
}

static int64_t due_ns(int64_t message) {
    return run.timetable_start_ns + message * 1000000000 / (int64_t)option.rate;
}

static bool is_all_sent(void) {
    return !run.timetable_start_ns || due_ns(run.due + 1) >= run.window_end_ns;
}

/* Sends what the timetable has due, each on the first sender with a free slot. */
static void send_due(int64_t now) {
    if (now >= run.window_end_ns) now = run.window_end_ns - 1;
    for (struct connection *c = connections; c < connections + connection_count; c++) {
        for (int index = 0; index < c->depth && due_ns(run.due + 1) <= now; index++)
            if (c->kind == SENDER && !c->slots[index].opaque) issue(c, index, due_ns(++run.due));
        flush_out(c);
    }
}

/* Returns when the next message is to be sent, which may be past; `until_ns` if that is later or
 * needs an answer first, because no slot is free. Not by its time alone: one that has come due since
 * the last look would wait for an answer although none may be awaited. */
static int64_t wake_ns(int64_t until_ns) {
    int64_t slots = (int64_t)option.connections * (int64_t)option.depth;
    if (is_all_sent() || run.outstanding >= slots) return until_ns;
    int64_t next = due_ns(run.due + 1);
    return next < until_ns ? next : until_ns;
}

/* Serves the connections until the time is up or, with `drain`, until nothing is outstanding. */
static void serve(int64_t until_ns, bool drain) {
    struct epoll_event events[256];
    for (int64_t now; (now = now_ns()) < until_ns;) {
        bool delivered = !run.timetable_start_ns || run.delivered >= run.acknowledged;
        if (drain && delivered && !run.outstanding && is_all_sent()) return;
        int64_t wake = wake_ns(until_ns), pause = wake > now ? wake - now : 0;
        struct timespec timeout = {pause / 1000000000, pause % 1000000000};
        int count = epoll_pwait2(epoll_fd, events, 256, &timeout, NULL);
        for (int i = 0; i < count; i++) {
            if (events[i].events & EPOLLOUT) flush_out(events[i].data.ptr);
            if (events[i].events & ~(uint32_t)EPOLLOUT) on_readable(events[i].data.ptr);
        }
        if (run.timetable_start_ns) send_due(now_ns());
    }
}

/* ---- modes ----------------------------------------------------------------------------------- */

static bool is_mode(const char *name) { return !strcmp(mode, name); }

/* Sends one request on a blocking socket and waits for its answer; false when there is none. */
static bool ask(int fd, const char *frame, size_t length, struct answer *answer) {
    static char buffer[1 << 16];
    if (send(fd, frame, length, MSG_NOSIGNAL) != (ssize_t)length) return false;
    if (recv(fd, buffer, 4, MSG_WAITALL) != 4) return false;
    size_t rest = be32(buffer);
    if (rest < 4 || rest > sizeof buffer - 4) errx(2, "answer of %zu bytes", rest);
    if (recv(fd, buffer + 4, rest, MSG_WAITALL) != (ssize_t)rest) return false;
    *answer = parse_frame(buffer, rest);
    return true;
}

static void load_queue_offsets(int code, int64_t *offsets) {
    char frame[2048], fields[512];
    struct answer answer;
    int fd = open_socket();
    for (int queue = 0; queue < queue_count; queue++) {
        snprintf(fields, sizeof fields, "\"queueId\":\"%d\",\"topic\":\"%s\"", queue, topic);
        size_t length = print_frame(frame, FIRST_OPAQUE, code, fields, "");
        if (!ask(fd, frame, length, &answer) || answer.code || answer.offset < 0)
            errx(2, "no answer with an offset of queue %d to code %d", queue, code);
        offsets[queue] = answer.offset;
    }
    close(fd);
}

static void open_connections(void) {
    bool timetable = is_mode("timetable");
    enum kind kind = is_mode("pull") ? PULLER : is_mode("idle") ? IDLER : SENDER;
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) err(2, "epoll");
    connections = calloc((size_t)option.connections + 1, sizeof *connections);
    if (kind == PULLER) load_queue_offsets(GET_MIN_OFFSET, queue_min);
    if (kind == PULLER || timetable) load_queue_offsets(GET_MAX_OFFSET, queue_max);
    if (kind == SENDER) build_templates();
    for (int i = 0; i < (int)option.connections; i++)
        add_connection(kind, kind == SENDER ? (int)option.depth : 1);
    if (timetable) add_connection(TAIL, queue_count);
    for (struct connection *c = connections; c < connections + connection_count; c++) {
        for (int index = 0; index < c->depth && may_issue(); index++)
            if (!timetable || c->kind == TAIL) issue(c, index, now_ns());
        flush_out(c);
    }
    if (timetable) {
        run.window_start_ns = run.window_end_ns = INT64_MAX;
        run.timetable_start_ns = now_ns();
    }
}

static void print_quantiles(const char *name, const struct histogram *histogram) {
    printf(", \"%sp50_us\": %.1f, \"%sp99_us\": %.1f, \"%sp999_us\": %.1f, \"%smax_us\": %.1f",
           name, histogram_us(histogram, 0.5), name, histogram_us(histogram, 0.99), name,
           histogram_us(histogram, 0.999), name, (double)histogram->max_ns / 1000);
}

static void report(const struct meters *start, const struct meters *end) {
    double seconds = (double)(end->time_ns - start->time_ns) / 1e9;
    printf("{\"mode\": \"%s\", \"requests\": %" PRId64 ", \"messages\": %" PRId64
           ", \"seconds\": %.3f, \"rate\": %.1f, \"unanswered\": %d",
           mode, run.requests, run.messages, seconds, (double)run.messages / seconds,
           run.outstanding);
    print_quantiles("", &answer_times);
    print_quantiles("end_to_end_", &end_to_end_times);
    printf(", \"undelivered\": %" PRId64 ", \"own_cpu_s\": %.3f, \"server_cpu_s\": %.4f, ",
           run.timetable_start_ns ? run.acknowledged - run.delivered : 0,
           (double)(end->own_cpu_ns - start->own_cpu_ns) / 1e9,
           (double)(end->server_cpu_ns - start->server_cpu_ns) / 1e9);
    const char *separator = "";
    printf("\"errors\": {");
    for (int code = 0; code < MAX_CODE; code++)
        if (run.errors[code]) {
            printf("%s\"%d\": %" PRId64, separator, code, run.errors[code]);
            separator = ", ";
        }
    puts("}}");
}

/* send, transaction, batch, pull and timetable: warm up, measure, wait for the last answers. */
static void measure(void) {
    open_connections();
    if (!option.count) serve(later_ns(option.warmup), false);
    struct meters start = read_meters();
    run.measuring = true;
    run.window_start_ns = start.time_ns;
    run.window_end_ns = start.time_ns + (int64_t)(option.seconds * 1e9);
    serve(later_ns(option.seconds), option.count > 0);
    struct meters end = read_meters();
    run.measuring = false;
    run.stopped = true;
    serve(later_ns(run.timetable_start_ns ? LONG_DRAIN_S : DRAIN_S), true);
    report(&start, &end);
}

/* Says when each connection has its heartbeat answered, then waits for the end of stdin. */
static void hold_idle(void) {
    char byte;
    int lost = 0;
    open_connections();
    serve(later_ns(HEARTBEATS_S), true);
    if (run.outstanding) errx(2, "%d heartbeats without an answer", run.outstanding);
    struct meters start = read_meters();
    printf("{\"ready\": %d}\n", connection_count);
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
    struct meters end = read_meters();
    for (int i = 0; i < connection_count; i++)
        lost += recv(connections[i].fd, &byte, 1, MSG_PEEK) == 0;
    if (lost) errx(2, "the server closed %d of %d connections", lost, connection_count);
    report(&start, &end);
}

/* Prints the monotonic clock at the first accepted message. */
static void wait_for_first_send(void) {
    int64_t deadline = later_ns(option.seconds);
    build_templates();
    for (struct answer answer; now_ns() < deadline; usleep(2000)) {
        int fd = open_socket();
        if (fd < 0) continue;
        patch(&headers[0], FIRST_OPAQUE, now_ns());
        send(fd, headers[0].bytes, headers[0].length, MSG_NOSIGNAL | MSG_MORE);
        bool answered = ask(fd, body.bytes, body.length, &answer);
        close(fd);
        if (!answered || answer.code) continue;
        printf("{\"mode\": \"first\", \"accepted_at_ns\": %" PRId64 "}\n", now_ns());
        return;
    }
    errx(2, "no message was accepted in %.0f s", option.seconds);
}

static void parse_options(int count, char **words) {
    static const struct {
        const char *name;
        double *value, least, most;
    } numbers[] = {
        {"--port", &option.port, 1, 65535},       {"--queues", &option.queues, 1, MAX_QUEUES},
        {"--connections", &option.connections, 0, 60000}, {"--depth", &option.depth, 1, 65536},
        {"--batch", &option.batch, 1, MAX_BATCH}, {"--pull-max", &option.pull_max, 1, 1024},
        {"--body", &option.body, 20, 4 << 20},    {"--rate", &option.rate, 1, 1e6},
        {"--warmup", &option.warmup, 0, 1e6},     {"--seconds", &option.seconds, 0.1, 1e6},
        {"--count", &option.count, 1, 1e12},      {"--server-pid", &option.server_pid, 1, 1e9},
        {"--delay", &option.delay, 1, 18},
    };
    if (count < 2 || count % 2) errx(2, "usage: loadgen MODE --port PORT [--option value ...]");
    mode = words[1];
    for (int i = 2, n; i < count; i += 2) {
        for (n = 12; n >= 0 && strcmp(words[i], numbers[n].name);) n--;
        if (n < 0 && !strcmp(words[i], "--sql")) sql = words[i + 1];
        else if (n < 0 && !strcmp(words[i], "--topic")) topic = words[i + 1];
        else if (n < 0 && !strcmp(words[i], "--broker")) broker = words[i + 1];
        else if (n < 0) errx(2, "no option %s", words[i]);
        if (n < 0) continue;
        *numbers[n].value = atof(words[i + 1]);
        if (*numbers[n].value < numbers[n].least || *numbers[n].value > numbers[n].most)
            errx(2, "%s must be %.10g to %.10g", words[i], numbers[n].least, numbers[n].most);
    }
    if (!option.port) errx(2, "--port is missing");
    if (strlen(topic) > 127) errx(2, "--topic must have at most 127 characters");
    if (strlen(broker) > 127) errx(2, "--broker must have at most 127 characters");
    queue_count = (int)option.queues;
    batching = is_mode("batch");
    transacting = is_mode("transaction");
    messages_per_send = batching ? (int)option.batch : 1;
}

int main(int count, char **words) {
    parse_options(count, words);
    if (is_mode("first")) wait_for_first_send();
    else if (is_mode("idle")) hold_idle();
    else if (batching || is_mode("send") || transacting || is_mode("pull") || is_mode("timetable"))
        measure();
    else errx(2, "no mode %s", mode);
    return 0;
}
