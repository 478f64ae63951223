//! What a round takes: messages in the order of the log, with chains through those of each queue.

use crate::record::{UNIT_BYTES, unit};

/// One queue that a round adds to.
#[derive(Clone, Debug)]
pub struct TouchedQueue {
    /// The number of the queue.
    pub queue: usize,
    /// Messages added.
    pub count: usize,
    /// The physical offset behind the last one.
    pub end: i64,
    pub(crate) next_offset: i64,
    pub(crate) first_row: usize,
    pub(crate) last_row: usize,
}

/// One topic that a round adds to.
#[derive(Clone, Debug)]
pub struct TouchedTopic {
    /// The number of the topic.
    pub topic: usize,
    /// Messages added.
    pub count: usize,
    /// Bytes of their records.
    pub size_bytes: usize,
}

/// What the answer to one taken request says.
#[derive(Clone, Copy, Debug)]
pub struct AnswerRow {
    /// The index of the read.
    pub read: usize,
    /// That of the request.
    pub opaque: i32,
    /// Whether it is in the binary form.
    pub is_binary: bool,
    /// The queue.
    pub queue_id: i32,
    /// Where the first message stands in it.
    pub queue_offset: i64,
    /// The index of the first message among those of the round.
    pub first: usize,
    /// How many messages there are.
    pub count: usize,
    /// Where the id of a half message stands among those of the round, and behind it.
    pub transaction_id: (usize, usize),
}

/// A taken request.
#[derive(Debug)]
pub(crate) struct SendRow {
    pub(crate) read: usize,
    pub(crate) topic: usize,
    pub(crate) queue_id: i32,
    pub(crate) sys_flag: i32,
    pub(crate) born_timestamp_ms: i64,
    pub(crate) reconsume_times: i32,
    pub(crate) prepared_transaction_offset: i64,
    /// Whether the broker's own properties are still to be added.
    pub(crate) has_suffix: bool,
}

/// A taken message; its body lies in the read, its properties in `Plan::texts`.
#[derive(Debug)]
pub(crate) struct MessageRow {
    pub(crate) send: usize,
    pub(crate) body_at: usize,
    pub(crate) body_end: usize,
    pub(crate) text_at: usize,
    pub(crate) text_end: usize,
    pub(crate) flag: i32,
    pub(crate) size: usize,
    pub(crate) tags_code: i64,
    pub(crate) queue_offset: i64,
    pub(crate) next_of_queue: usize,
}

/// What a round takes.
#[derive(Debug, Default)]
pub struct Plan {
    /// For each read how many of its bytes are taken.
    pub taken: Vec<usize>,
    /// How many reads, the last ones, have to wait: from the one on with a frame for which there was
    /// no room, or before which a limit was reached.
    pub waiting: usize,
    /// Bytes of all records.
    pub size_bytes: usize,
    /// Queues in the order of first touch.
    pub queues: Vec<TouchedQueue>,
    /// Topics in the order of first touch.
    pub topics: Vec<TouchedTopic>,
    /// Rows for the index.
    pub keys: Vec<u8>,
    /// Answers in the order of the requests.
    pub answers: Vec<AnswerRow>,
    /// Where the records begin in the CommitLog.
    pub physical_offsets: Vec<i64>,
    /// Ids of half messages, one behind the other.
    pub transaction_ids: Vec<u8>,
    pub(crate) sends: Vec<SendRow>,
    pub(crate) messages: Vec<MessageRow>,
    pub(crate) texts: Vec<u8>,
    pub(crate) further_keys: usize,
    pub(crate) properties: usize,
    pub(crate) round: u64,
}

/// Where a plan stood before a frame was looked at.
pub(crate) struct Marks {
    messages: usize,
    texts: usize,
    keys: usize,
    transaction_ids: usize,
    size_bytes: usize,
}

impl Plan {
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            messages: self.messages.len(),
            texts: self.texts.len(),
            keys: self.keys.len(),
            transaction_ids: self.transaction_ids.len(),
            size_bytes: self.size_bytes,
        }
    }

    /// Forgets the messages of a frame that is not taken.
    pub(crate) fn give_back(&mut self, marks: &Marks) {
        self.messages.truncate(marks.messages);
        self.physical_offsets.truncate(marks.messages);
        self.texts.truncate(marks.texts);
        self.keys.truncate(marks.keys);
        self.transaction_ids.truncate(marks.transaction_ids);
        self.size_bytes = marks.size_bytes;
    }

    /// Messages taken.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn begin(&mut self) {
        self.taken.clear();
        self.waiting = 0;
        self.size_bytes = 0;
        self.queues.clear();
        self.topics.clear();
        self.keys.clear();
        self.answers.clear();
        self.physical_offsets.clear();
        self.transaction_ids.clear();
        self.sends.clear();
        self.messages.clear();
        self.texts.clear();
        self.round += 1;
    }

    /// Fills bytes that are as many as the units of a queue have; none where they are not.
    pub fn fill_units(&self, queue: &TouchedQueue, out: &mut [u8]) -> Option<()> {
        if Some(out.len()) != queue.count.checked_mul(UNIT_BYTES) {
            return None;
        }
        let mut row = queue.first_row;
        for place in out.chunks_exact_mut(UNIT_BYTES) {
            let message = self.messages.get(row)?;
            let size = i32::try_from(message.size).ok()?;
            place.copy_from_slice(&unit(
                *self.physical_offsets.get(row)?,
                size,
                message.tags_code,
            ));
            row = message.next_of_queue;
        }
        Some(())
    }
}
