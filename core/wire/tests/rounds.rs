//! Whole rounds: what is taken, in which order it is stored, and that no bytes make it panic.

use mailboat_wire::parked::{DELAYED_TOPIC, HALF_TOPIC};
use mailboat_wire::plan::Plan;
use mailboat_wire::restored::Waited;
use mailboat_wire::round::{Place, QueueEnds, Read, Rounds, Settings};
use mailboat_wire::stored_record::StoredRecord;

const PEER: &[u8] = b"\x0a\0\0\x01\0\0\x04\xd2";
const PLACE: Place = Place {
    physical_offset: 1_000,
    room_bytes: 100_000,
    store_timestamp_ms: 1_700_000_000_000,
    delay_from_ms: 0,
    takes_halves: true,
    message_limit: 100,
};

struct AllEndAt(i64);

impl QueueEnds for AllEndAt {
    fn next_offset(&mut self, _queue: usize) -> Option<i64> {
        Some(self.0)
    }
}

fn rounds() -> Rounds {
    let mut rounds = Rounds::new(Settings {
        store_host: PEER.to_vec(),
        broker_name: b"broker-a".to_vec(),
        suffix: b"CLUSTER\x01c\x02".to_vec(),
        append_crc: true,
        with_keys: true,
        holds_answers: false,
        delays_ms: vec![1000],
        max_body_bytes: 4_096,
    });
    // The numbers of the queues are not their ids.
    for queue_id in [0, 1, 9] {
        rounds.topics.learn(b"T", queue_id);
    }
    rounds
}

fn frame(header: &str, body: &[u8]) -> Vec<u8> {
    let header_bytes = u32::try_from(header.len()).expect("short");
    let body_bytes = u32::try_from(body.len()).expect("short");
    [
        &(4 + header_bytes + body_bytes).to_be_bytes()[..],
        &header_bytes.to_be_bytes(),
        header.as_bytes(),
        body,
    ]
    .concat()
}

fn send(code: u32, queue_id: u32, flag: u32, body: &[u8]) -> Vec<u8> {
    let header = format!(
        r#"{{"code":{code},"extFields":{{"a":"P","b":"T","c":"TBW102","d":"4","e":"{queue_id}",
        "f":"0","g":"1700000000000","h":"0","i":"KEYS\u0001k l\u0002WAIT\u0001true\u0002UNIQ_KEY\u0001U",
        "j":"0","k":"false","l":"16","m":"false","n":"broker-a"}},"flag":{flag},"language":"JAVA",
        "opaque":7,"version":401}}"#
    );
    frame(&header, body)
}

fn long_send() -> Vec<u8> {
    let header = r#"{"code":10,"extFields":{"producerGroup":"P","topic":"T","defaultTopic":"TBW102",
        "defaultTopicQueueNums":4,"queueId":1,"sysFlag":0,"bornTimestamp":1700000000000,"flag":0,
        "properties":"UNIQ_KEY\u0001\u6c34\u0002TAGS\u0001t","bname":null},"opaque":-1}"#;
    frame(header, b"body")
}

fn batch() -> Vec<u8> {
    let text = b"UNIQ_KEY\x01U\x02WAIT\x01true\x02";
    let item = [
        &[
            0, 0, 0, 46, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, 1, 2, 3, 0, 21,
        ][..],
        text,
    ]
    .concat();
    send(320, 0, 0, &item.repeat(3))
}

fn read(bytes: &[u8]) -> Read<'_> {
    Read {
        bytes,
        peer_host: PEER,
    }
}

fn filled(rounds: &Rounds, reads: &[Read<'_>], place: Place) -> Vec<u8> {
    let mut records = vec![0; rounds.last().size_bytes];
    rounds.fill(reads, place, &mut records).expect("as planned");
    records
}

fn touched(plan: &Plan) -> Vec<(usize, usize)> {
    plan.queues
        .iter()
        .map(|queue| (queue.queue, queue.count))
        .collect()
}

#[test]
fn ordinary_sends_are_taken_in_order() {
    let mut rounds = rounds();
    let first = [send(310, 1, 0, b"a"), batch()].concat();
    let second = [long_send(), send(310, 0, 2, b"b")].concat();
    let reads = [read(&first), read(&second)];
    let plan = rounds.plan(&reads, PLACE, &mut AllEndAt(5));
    assert_eq!(plan.taken, [first.len(), second.len()]);
    assert_eq!(plan.waiting, 0);
    assert_eq!(plan.message_count(), 6);
    assert_eq!(touched(plan), [(1, 2), (0, 4)]);
    // The keys of the first are U, k and l.
    assert_eq!(plan.keys.len(), (3 + 3 + 1 + 3) * 12);
    let answers: Vec<_> = plan
        .answers
        .iter()
        .map(|row| {
            (
                row.read,
                row.opaque,
                row.queue_id,
                row.queue_offset,
                row.count,
            )
        })
        .collect();
    assert_eq!(
        answers,
        [(0, 7, 1, 5, 1), (0, 7, 0, 5, 3), (1, -1, 1, 6, 1)]
    );
    let mut units = vec![0; 4 * 20];
    plan.fill_units(&plan.queues[1], &mut units).expect("four");
    assert_eq!(plan.fill_units(&plan.queues[1], &mut units[20..]), None);
    let records = filled(&rounds, &reads, PLACE);
    let plan = rounds.last();
    for (message, unit) in [1, 2, 3, 5].into_iter().zip(units.chunks(20)) {
        assert_eq!(unit[..8], plan.physical_offsets[message].to_be_bytes());
        let at = usize::try_from(plan.physical_offsets[message] - 1_000).expect("behind the start");
        assert_eq!(unit[8..12], records[at..at + 4]);
        assert_eq!(records[at + 4..at + 8], [0xDA, 0xA3, 0x20, 0xA7]);
    }
    assert!(records.windows(4).all(|part| part != b"WAIT"));
}

#[test]
fn a_frame_that_is_left_ends_its_read() {
    let mut rounds = rounds();
    let odd = [
        send(310, 0, 0, b"a"),
        send(310, 2, 0, b"b"),
        send(310, 0, 0, b"c"),
    ]
    .concat();
    let cut = odd.len() / 3;
    let cut_short = &odd[..cut - 1];
    let reads = [read(&odd), read(cut_short), read(&odd[..cut])];
    let plan = rounds.plan(&reads, PLACE, &mut AllEndAt(0));
    assert_eq!(plan.taken, [cut, 0, cut]);
    assert_eq!((plan.waiting, plan.message_count()), (0, 2));
    assert_eq!(touched(plan), [(0, 2)]);
}

#[test]
fn a_round_ends_where_there_is_no_room() {
    let mut rounds = rounds();
    let two = [send(310, 0, 0, b"a"), send(310, 0, 0, b"b")].concat();
    let half = two.len() / 2;
    let reads = [read(&two), read(&two)];
    let size = rounds.plan(&reads[..1], PLACE, &mut AllEndAt(0)).size_bytes;
    for (room_bytes, messages, waiting) in [
        (size + 8, 2, 1),
        (size + 7, 1, 2),
        (7, 0, 2),
        (2 * size + 8, 4, 0),
    ] {
        let plan = rounds.plan(
            &reads,
            Place {
                room_bytes,
                ..PLACE
            },
            &mut AllEndAt(0),
        );
        assert_eq!(
            (plan.message_count(), plan.waiting),
            (messages, waiting),
            "{room_bytes}"
        );
        assert_eq!(plan.taken.iter().sum::<usize>(), messages * half);
    }
    let plan = rounds.plan(
        &reads,
        Place {
            message_limit: 3,
            ..PLACE
        },
        &mut AllEndAt(0),
    );
    assert_eq!((plan.message_count(), plan.waiting), (3, 1));
}

#[test]
fn a_batch_is_taken_whole_or_not_at_all() {
    let mut rounds = rounds();
    let bytes = batch();
    let size = rounds
        .plan(&[read(&bytes)], PLACE, &mut AllEndAt(0))
        .size_bytes;
    // Two bytes more for each message, and the filler, are what the check of sizes counts.
    for (room_bytes, taken) in [(size + 14, bytes.len()), (size + 13, 0)] {
        let plan = rounds.plan(
            &[read(&bytes)],
            Place {
                room_bytes,
                ..PLACE
            },
            &mut AllEndAt(0),
        );
        let waiting = usize::from(taken == 0);
        assert_eq!((plan.taken[0], plan.waiting), (taken, waiting));
        assert_eq!(plan.keys.len(), if taken == 0 { 0 } else { 36 });
    }
    let mut rare = bytes.clone();
    let at = rare
        .windows(4)
        .rposition(|part| part == b"WAIT")
        .expect("is there");
    rare[at..at + 4].copy_from_slice(b"TAGS");
    assert_eq!(
        rounds
            .plan(&[read(&rare)], PLACE, &mut AllEndAt(0))
            .message_count(),
        3
    );
    rare[at..at + 4].copy_from_slice(b"T\x01GS");
    let plan = rounds.plan(&[read(&rare)], PLACE, &mut AllEndAt(0));
    assert_eq!(
        (plan.message_count(), plan.size_bytes, plan.keys.len()),
        (0, 0, 0)
    );
    assert_eq!(touched(plan), []);
}

/// A send to queue 1 of T with further properties.
fn parked(properties: &str) -> Vec<u8> {
    let text = format!("UNIQ_KEY\\u0001U\\u0002{properties}");
    let frame_of = String::from_utf8(send(310, 1, 0, b"")).expect("text");
    let header = &frame_of[frame_of.find('{').expect("a header")..];
    let own = r"KEYS\u0001k l\u0002WAIT\u0001true\u0002UNIQ_KEY\u0001U";
    frame(&header.replace(own, &text), b"body")
}

const DELAYED: &str = r"DELAY\u00011\u0002";
const HALF: &str = r"PGROUP\u0001P\u0002TRAN_MSG\u0001true\u0002";

#[test]
fn what_waits_goes_where_it_waits_and_back() {
    for (properties, waited) in [(DELAYED, Waited::Delayed), (HALF, Waited::Half)] {
        let mut rounds = rounds();
        let bytes = parked(properties).repeat(2);
        let reads = [read(&bytes)];
        assert_eq!(rounds.plan(&reads, PLACE, &mut AllEndAt(5)).taken, [0]);
        let learned = [DELAYED_TOPIC, HALF_TOPIC].map(|topic| rounds.topics.learn(topic, 0));
        let parked = learned[usize::from(waited == Waited::Half)].expect("learned");
        let refusing = Place {
            takes_halves: false,
            ..PLACE
        };
        let plan = rounds.plan(&reads, refusing, &mut AllEndAt(5));
        let taken = if waited == Waited::Half { 0 } else { 2 };
        assert_eq!(plan.message_count(), taken);
        let plan = rounds.plan(&reads, PLACE, &mut AllEndAt(5));
        assert_eq!(
            (plan.message_count(), touched(plan)),
            (2, vec![(parked.queue, 2)])
        );
        // The answer names the queue that was asked for.
        assert_eq!(plan.answers[0].queue_id, 1);
        let stored = filled(&rounds, &reads, PLACE);
        let record = StoredRecord::read(&stored).expect("a record");
        let records = [read(record.bytes), read(&stored[record.bytes.len()..])];
        let plan = rounds.plan_restored(&records, waited, PLACE, &mut AllEndAt(9));
        assert_eq!((plan.message_count(), touched(plan)), (2, vec![(1, 2)]));
        assert!(plan.answers.is_empty());
        let restored = filled(&rounds, &records, PLACE);
        let restored = StoredRecord::read(&restored).expect("a record");
        assert_eq!((restored.topic, restored.body), (&b"T"[..], record.body));
        assert_eq!((restored.queue_id, restored.queue_offset), (1, 9));
        let is_half = waited == Waited::Half;
        let expected = if is_half { (8, 1_000) } else { (0, 0) };
        let transaction = (restored.sys_flag, restored.prepared_transaction_offset);
        assert_eq!(transaction, expected);
        let other = if is_half {
            Waited::Delayed
        } else {
            Waited::Half
        };
        let plan = rounds.plan_restored(&records, other, PLACE, &mut AllEndAt(9));
        assert_eq!(plan.message_count(), 0);
        let small = Place {
            room_bytes: record.bytes.len(),
            ..PLACE
        };
        let plan = rounds.plan_restored(&records, waited, small, &mut AllEndAt(9));
        assert_eq!(plan.message_count(), 1);
    }
}

#[test]
fn no_send_names_a_topic_of_the_broker() {
    let mut rounds = rounds();
    for topic in [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "%RETRY%g",
    ] {
        rounds.topics.learn(topic.as_bytes(), 0);
        rounds.topics.learn(topic.as_bytes(), 1);
        let ordinary = String::from_utf8(send(310, 1, 0, b"")).expect("text");
        let header = &ordinary[ordinary.find('{').expect("a header")..];
        let bytes = frame(
            &header.replace("\"b\":\"T\"", &format!("\"b\":\"{topic}\"")),
            b"x",
        );
        let plan = rounds.plan(&[read(&bytes)], PLACE, &mut AllEndAt(5));
        assert_eq!(plan.taken, [0], "{topic}");
    }
}

#[test]
fn offsets_at_the_end_of_numbers_are_left() {
    let mut rounds = rounds();
    let bytes = batch();
    for (end, physical_offset, taken) in [
        (i64::MAX, 0, 0),
        (-1, 0, 0),
        (0, i64::MAX, 0),
        (i64::MAX - 3, 0, bytes.len()),
    ] {
        let place = Place {
            physical_offset,
            ..PLACE
        };
        let plan = rounds.plan(&[read(&bytes)], place, &mut AllEndAt(end));
        assert_eq!(plan.taken, [taken], "{end} {physical_offset}");
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut rounds = rounds();
    let whole = [
        send(310, 1, 0, b"a"),
        long_send(),
        batch(),
        send(310, 0, 0, b"b"),
    ]
    .concat();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 33).unwrap_or_default() % below
    };
    let interesting = b"\x00\x01\x02\x7f\x80\xff\"\\{}[]:,u0-19 .etfn";
    let mut changed = whole.clone();
    let mut taken = 0;
    for _ in 0..200_000 {
        changed.clone_from(&whole);
        for _ in 0..=next(3) {
            let at = next(changed.len());
            changed[at] = interesting[next(interesting.len())];
        }
        changed.truncate(whole.len() - [0, 0, next(whole.len())][next(3)]);
        let reads = [read(&changed), read(&whole)];
        let plan = rounds.plan(&reads, PLACE, &mut AllEndAt(5));
        assert!(plan.taken[0] <= changed.len() && plan.taken[1] == whole.len());
        let counted: usize = plan.queues.iter().map(|queue| queue.count).sum();
        assert_eq!(counted, plan.message_count());
        taken += counted;
        filled(&rounds, &reads, PLACE);
    }
    // The second read has six messages, and now and then the first has some.
    assert!(taken > 200_000 * 7, "{taken}");
}
