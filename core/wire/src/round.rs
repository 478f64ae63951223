//! One round of sends: from what connections sent to records, ConsumeQueue units, keys and answers.
//!
//! `Rounds::plan` looks at the reads, decides what is taken and where it goes; `Rounds::fill` then
//! writes the records. What is not an ordinary send to a learned topic is left, and with it the
//! rest of its read, so that the order of each read stays. Nothing is remembered between rounds.

use crate::batch;
use crate::checksum::CRC_PROPERTY_BYTES;
use crate::frame::{self, Frame};
use crate::grants::Grants;
use crate::hash::{hash_text, tags_code};
use crate::header::{self, SendHeader};
use crate::index;
use crate::json::unescape;
use crate::parked::{DELAYED_TOPIC, HALF_TOPIC, Parking};
use crate::plan::{AnswerRow, MessageRow, Plan, SendRow, TouchedQueue, TouchedTopic};
use crate::properties::{self, Properties};
use crate::record::{
    BARE_BYTES, CLIENT_BITS, FILLER_BYTES, HOST_BYTES, HOST_V6_BYTES, PORT_BYTES, Record,
};
use crate::topics::{Numbers, Topics};

/// Properties of a stored message may take so much, before the checksum.
const MAX_STORED_PROPERTIES_BYTES: usize = 32_767 - 21;
/// Body and properties together below which no limit of a record is near.
const SURELY_LEGAL_BYTES: usize = 8_192;
/// Keys of one message; more take longer than the sends of everybody else should.
const MAX_KEYS_OF_A_MESSAGE: usize = 64;

/// Messages of a batch whose ids surely fit the binary header of an answer.
const MAX_BINARY_IDS: usize = 1_000;

/// What stays the same for all rounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This broker's address as records hold it, 8 or 20 bytes.
    pub store_host: Vec<u8>,
    /// The name that requests may give this broker.
    pub broker_name: Vec<u8>,
    /// Properties that the broker adds to every message, with a separator at the end.
    pub suffix: Vec<u8>,
    /// Whether records carry a checksum of their own.
    pub append_crc: bool,
    /// Whether rows for the index are wanted.
    pub with_keys: bool,
    /// Whether answers wait for a flush, so that WAIT=false matters.
    pub holds_answers: bool,
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// How long messages of each level are delayed.
    pub delays_ms: Vec<i64>,
}

/// What one connection sent, from the beginning of a frame on.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The frames.
    pub bytes: &'a [u8],
    /// Who sent them, as records hold it.
    pub peer_host: &'a [u8],
}

/// No frame is taken once there are so many bytes of keys: an index takes some milliseconds for them.
const KEYS_BYTES_LIMIT: usize = 8_192 * index::ROW_BYTES;
/// Nor once there are so many bytes of records.
const RECORDS_BYTES_LIMIT: usize = 1024 * 1024;

/// Where and when the records of a round are stored.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where the first one begins in the CommitLog.
    pub physical_offset: i64,
    /// Bytes from there to the end of the segment.
    pub room_bytes: usize,
    /// The time.
    pub store_timestamp_ms: i64,
    /// The time from which delays count.
    pub delay_from_ms: i64,
    /// Whether half messages are taken.
    pub takes_halves: bool,
    /// No frame is taken once there are so many messages.
    pub message_limit: usize,
}

/// Knows where queues end.
pub trait QueueEnds {
    /// Returns the queue offset of the next message of a queue, by its number.
    fn next_offset(&mut self, queue: usize) -> Option<i64>;
}

enum Outcome {
    Taken,
    Left,
    Full,
}

/// What a frame is about, found out before its messages are looked at.
pub(crate) struct Target {
    pub(crate) numbers: Numbers,
    pub(crate) queue_id: i32,
    pub(crate) key_seed: u32,
    /// Bytes of each record beside its body and its own properties.
    pub(crate) fixed_bytes: usize,
    pub(crate) sys_flag: i32,
    pub(crate) prepared_transaction_offset: i64,
    /// Whether the broker's own properties are still to be added.
    pub(crate) has_suffix: bool,
    /// When a delayed message is due, which its unit says in place of a tagsCode.
    pub(crate) deliver_ms: Option<i64>,
    /// Where the id of a half message stands among those of the round, and behind it.
    pub(crate) transaction_id: (usize, usize),
}

/// Plans rounds with what it has learned of topics.
#[derive(Debug)]
pub struct Rounds {
    /// What stays the same.
    pub settings: Settings,
    /// What sends may go to.
    pub topics: Topics,
    /// What a send needs beside a signature; none where everybody may send.
    pub grants: Option<Grants>,
    pub(crate) plan: Plan,
}

impl Rounds {
    /// Begins without topics.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Rounds {
            settings,
            topics: Topics::default(),
            grants: None,
            plan: Plan::default(),
        }
    }

    /// What the last call of `plan` has planned.
    #[must_use]
    pub fn last(&self) -> &Plan {
        &self.plan
    }

    /// Goes through the reads in order and plans what to do with them.
    pub fn plan(&mut self, reads: &[Read<'_>], place: Place, ends: &mut dyn QueueEnds) -> &Plan {
        self.plan.begin();
        for (index, read) in reads.iter().enumerate() {
            let mut at = 0;
            while self.plan.waiting == 0 {
                let Some(frame) = frame::cut(read.bytes, at) else {
                    break;
                };
                match self.take_frame(index, read, &frame, place, ends) {
                    Outcome::Taken => at = frame.end,
                    Outcome::Left => break,
                    Outcome::Full => self.plan.waiting = reads.len() - index,
                }
            }
            self.plan.taken.push(at);
        }
        &self.plan
    }

    fn take_frame(
        &mut self,
        index: usize,
        read: &Read<'_>,
        frame: &Frame<'_>,
        place: Place,
        ends: &mut dyn QueueEnds,
    ) -> Outcome {
        if self.plan.messages.len() >= place.message_limit
            || self.plan.keys.len() >= KEYS_BYTES_LIMIT
            || self.plan.size_bytes >= RECORDS_BYTES_LIMIT
        {
            return Outcome::Full;
        }
        let plan = &self.plan;
        let first = plan.messages.len();
        let marks = plan.marks();
        let Some(header) = self.allowed_header(read, frame) else {
            return Outcome::Left;
        };
        let Some(mut target) = self.target(&header, read, frame) else {
            return Outcome::Left;
        };
        let outcome = self.take_messages(&header, &mut target, read, frame, place);
        if matches!(outcome, Some(Outcome::Taken))
            && self
                .commit(index, &header, &target, first, place, ends)
                .is_some()
        {
            return Outcome::Taken;
        }
        self.plan.give_back(&marks);
        match outcome {
            Some(Outcome::Full) => Outcome::Full,
            _ => Outcome::Left,
        }
    }

    /// Reads the header of a send that may be carried out.
    fn allowed_header<'a>(&mut self, read: &Read<'a>, frame: &Frame<'a>) -> Option<SendHeader<'a>> {
        let Some(grants) = &mut self.grants else {
            return header::read(frame);
        };
        let (header, mut fields) = header::read_signed(frame)?;
        let body = read.bytes.get(frame.body_at..frame.end)?;
        let address_bytes = read.peer_host.len().checked_sub(PORT_BYTES)?;
        let address = read.peer_host.get(..address_bytes)?;
        grants.allows(&mut fields, body, address, header.topic)?;
        Some(header)
    }

    /// Checks what a header asks for.
    fn target(
        &mut self,
        header: &SendHeader<'_>,
        read: &Read<'_>,
        frame: &Frame<'_>,
    ) -> Option<Target> {
        let settings = &self.settings;
        let body_bytes = frame.end - frame.body_at;
        let hosts = [read.peer_host.len(), settings.store_host.len()];
        if body_bytes == 0
            || body_bytes > settings.max_body_bytes
            || header
                .broker_name
                .is_some_and(|name| name != settings.broker_name)
            || hosts
                .iter()
                .any(|&size| size != HOST_BYTES && size != HOST_V6_BYTES)
            || header.topic.starts_with(b"%")
            || header.topic == DELAYED_TOPIC
            || header.topic == HALF_TOPIC
        {
            return None;
        }
        let number = self.topics.find(header.topic)?;
        let topic = self.topics.get(number)?;
        let queue = topic.queue(header.queue_id)?;
        let crc_bytes = if settings.append_crc {
            CRC_PROPERTY_BYTES
        } else {
            0
        };
        Some(Target {
            numbers: Numbers {
                topic: number,
                queue,
            },
            queue_id: header.queue_id,
            key_seed: topic.key_seed,
            fixed_bytes: BARE_BYTES
                + hosts[0]
                + hosts[1]
                + topic.name.len()
                + settings.suffix.len()
                + crc_bytes,
            sys_flag: header.sys_flag & CLIENT_BITS,
            prepared_transaction_offset: 0,
            has_suffix: true,
            deliver_ms: None,
            transaction_id: (0, 0),
        })
    }

    /// Adds the messages of a frame; none where one of them is odd.
    fn take_messages(
        &mut self,
        header: &SendHeader<'_>,
        target: &mut Target,
        read: &Read<'_>,
        frame: &Frame<'_>,
        place: Place,
    ) -> Option<Outcome> {
        // What a check of sizes counts of a record beyond the bytes that it has.
        let slack = if self.settings.append_crc { 2 } else { 1 };
        let before = self.plan.size_bytes;
        let mut room = place.room_bytes.checked_sub(before)?;
        self.plan.further_keys = 0;
        self.plan.properties = 0;
        if !header.is_batch {
            let text_at = self.plan.texts.len();
            unescape(header.properties, &mut self.plan.texts)?;
            let body = frame.body_at..frame.end;
            let found = self.found(text_at)?;
            self.park(header, target, &found, text_at, place)?;
            let size = self.add_message(target, &found, body, text_at, header.flag, place)?;
            if size + FILLER_BYTES > room {
                return Some(Outcome::Full);
            }
            let variable_bytes = size - target.fixed_bytes + self.settings.suffix.len();
            // At the very end of a segment the long check of a large message may say no.
            let is_legal =
                variable_bytes <= SURELY_LEGAL_BYTES || size + slack + FILLER_BYTES <= room;
            return is_legal.then_some(Outcome::Taken);
        }
        let body = read.bytes.get(frame.body_at..frame.end)?;
        let first = self.plan.messages.len();
        let mut at = 0;
        room = room.saturating_sub(FILLER_BYTES);
        let mut is_full = false;
        while at < body.len() {
            let item = batch::item(body, at)?;
            at = item.text.end;
            let text = body.get(item.text)?;
            std::str::from_utf8(text).ok()?;
            let text_at = self.plan.texts.len();
            self.plan.texts.extend_from_slice(text);
            let item_body = frame.body_at + item.body.start..frame.body_at + item.body.end;
            let found = self.found(text_at)?;
            if found.delay.is_some() || found.half.is_some() {
                return None;
            }
            let size = self.add_message(target, &found, item_body, text_at, item.flag, place)?;
            // Whether it is odd says only a look at all of it.
            is_full |= size + slack > room;
            room = room.saturating_sub(size + slack);
            if self.plan.messages.len() - first > batch::MAX_MESSAGES {
                return None;
            }
        }
        if header.is_binary && self.plan.messages.len() - first > MAX_BINARY_IDS {
            return None;
        }
        if self.plan.further_keys >= batch::MAX_FURTHER_KEYS
            || self.plan.properties >= properties::MAX_PROPERTIES
        {
            return None;
        }
        Some(if is_full {
            Outcome::Full
        } else {
            Outcome::Taken
        })
    }

    /// Closes the last of the texts and reads it.
    fn found(&mut self, text_at: usize) -> Option<Properties> {
        let texts = &mut self.plan.texts;
        if texts.last() != Some(&2) {
            texts.push(2);
        }
        properties::read(texts.get(text_at..)?)
    }

    /// Lets a message that is to wait go to where it does, and says so in its text.
    fn park(
        &mut self,
        header: &SendHeader<'_>,
        target: &mut Target,
        found: &Properties,
        text_at: usize,
        place: Place,
    ) -> Option<()> {
        let (plan, settings) = (&mut self.plan, &self.settings);
        if found.delay.is_none() && found.half.is_none() {
            return Some(());
        }
        let real = self.topics.get(target.numbers.topic)?;
        let text = plan.texts.get(text_at..)?;
        let parking = Parking::of(text, found, &settings.delays_ms, place.delay_from_ms)?;
        if parking == Parking::Half {
            // The fields of a binary answer that names a transaction have an order of their own.
            if !place.takes_halves || header.is_binary {
                return None;
            }
            let begin = plan.transaction_ids.len();
            let id = text.get(found.unique_key.clone())?;
            plan.transaction_ids.extend_from_slice(id);
            target.transaction_id = (begin, plan.transaction_ids.len());
        }
        plan.texts.extend_from_slice(&settings.suffix);
        let home = (real.name.as_slice(), header.queue_id);
        parking.write(&mut plan.texts, text_at, found, home);
        let (name, queue_id) = parking.place();
        let (numbers, topic) = self.topics.own(name, queue_id)?;
        target.fixed_bytes -= real.name.len() + settings.suffix.len();
        target.fixed_bytes += topic.name.len();
        target.numbers = numbers;
        target.queue_id = queue_id;
        target.key_seed = topic.key_seed;
        target.has_suffix = false;
        if let Parking::Delayed { deliver_ms, .. } = parking {
            target.deliver_ms = Some(deliver_ms);
        }
        Some(())
    }

    /// Adds a message whose properties are the last of the texts; returns the size of its record.
    pub(crate) fn add_message(
        &mut self,
        target: &Target,
        found: &Properties,
        body: std::ops::Range<usize>,
        text_at: usize,
        flag: i32,
        place: Place,
    ) -> Option<usize> {
        let plan = &mut self.plan;
        let text = plan.texts.get(text_at..)?;
        if found.waits_not && self.settings.holds_answers {
            return None;
        }
        let offset = i64::try_from(plan.size_bytes).ok()?;
        let physical_offset = place.physical_offset.checked_add(offset)?;
        let tags_code = match (target.deliver_ms, &found.tags) {
            (Some(deliver_ms), _) => deliver_ms,
            (_, Some(tags)) => tags_code(text.get(tags.clone())?)?,
            _ => 0,
        };
        let mut put_key = |key: &[u8]| {
            if self.settings.with_keys {
                let hash = hash_text(target.key_seed, key)?;
                plan.keys.extend_from_slice(&hash.to_ne_bytes());
                plan.keys.extend_from_slice(&physical_offset.to_ne_bytes());
            }
            Some(())
        };
        put_key(text.get(found.unique_key.clone())?)?;
        if let Some(keys) = &found.keys {
            let mut count = 0;
            for key in text.get(keys.clone())?.split(|&byte| byte == b' ') {
                count += 1;
                if !key.is_empty() {
                    put_key(key)?;
                }
            }
            if count > MAX_KEYS_OF_A_MESSAGE {
                return None;
            }
            plan.further_keys += count - 1;
        }
        plan.properties += found.count;
        if let Some(wait) = &found.wait {
            plan.texts.drain(text_at + wait.start..text_at + wait.end);
        }
        let text_end = plan.texts.len();
        let text_bytes = text_end - text_at;
        let suffix_bytes = if target.has_suffix {
            self.settings.suffix.len()
        } else {
            0
        };
        if text_bytes + suffix_bytes > MAX_STORED_PROPERTIES_BYTES {
            return None;
        }
        let size = target.fixed_bytes + text_bytes + body.len();
        plan.size_bytes = plan.size_bytes.checked_add(size)?;
        plan.physical_offsets.push(physical_offset);
        plan.messages.push(MessageRow {
            send: plan.sends.len(),
            body_at: body.start,
            body_end: body.end,
            text_at,
            text_end,
            flag,
            size,
            tags_code,
            queue_offset: 0,
            next_of_queue: 0,
        });
        Some(size)
    }

    /// Gives the messages from `first` on their places in their queue.
    pub(crate) fn commit(
        &mut self,
        read: usize,
        header: &SendHeader<'_>,
        target: &Target,
        first: usize,
        place: Place,
        ends: &mut dyn QueueEnds,
    ) -> Option<()> {
        let Rounds { topics, plan, .. } = self;
        let numbers = target.numbers;
        let topic = topics.all.get_mut(numbers.topic)?;
        let queue = topics.queues.get_mut(numbers.queue)?;
        let queue_id = target.queue_id;
        let count = plan.messages.len().checked_sub(first)?;
        let added = i64::try_from(count).ok()?;
        let end = place
            .physical_offset
            .checked_add(i64::try_from(plan.size_bytes).ok()?)?;
        let is_touched = queue.round == plan.round;
        let queue_offset = if is_touched {
            plan.queues.get(queue.place)?.next_offset
        } else {
            ends.next_offset(numbers.queue)?
        };
        let next_offset = queue_offset.checked_add(added)?;
        if queue_offset < 0 || count == 0 {
            return None;
        }
        // From here on nothing fails.
        if !is_touched {
            queue.round = plan.round;
            queue.place = plan.queues.len();
            plan.queues.push(TouchedQueue {
                queue: numbers.queue,
                count: 0,
                end,
                next_offset,
                first_row: first,
                last_row: first,
            });
        }
        let touched = plan.queues.get_mut(queue.place)?;
        if is_touched {
            plan.messages.get_mut(touched.last_row)?.next_of_queue = first;
        }
        let added = plan.messages.get_mut(first..)?;
        for ((message, queue_offset), row) in added.iter_mut().zip(queue_offset..).zip(first..) {
            message.queue_offset = queue_offset;
            message.next_of_queue = row + 1;
        }
        touched.last_row = plan.messages.len() - 1;
        touched.count += count;
        touched.next_offset = next_offset;
        touched.end = end;
        if topic.round != plan.round {
            topic.round = plan.round;
            topic.place = plan.topics.len();
            plan.topics.push(TouchedTopic {
                topic: numbers.topic,
                count: 0,
                size_bytes: 0,
            });
        }
        let size_bytes: usize = plan
            .messages
            .iter()
            .skip(first)
            .map(|message| message.size)
            .sum();
        let touched = plan.topics.get_mut(topic.place)?;
        touched.count += count;
        touched.size_bytes += size_bytes;
        if !header.is_oneway {
            let opaque = header.opaque;
            plan.answers.push(AnswerRow {
                read,
                opaque,
                is_binary: header.is_binary,
                queue_id: header.queue_id,
                queue_offset,
                first,
                count,
                transaction_id: target.transaction_id,
            });
        }
        plan.sends.push(SendRow {
            read,
            topic: numbers.topic,
            queue_id,
            sys_flag: target.sys_flag,
            born_timestamp_ms: header.born_timestamp_ms,
            reconsume_times: header.reconsume_times,
            prepared_transaction_offset: target.prepared_transaction_offset,
            has_suffix: target.has_suffix,
        });
        Some(())
    }

    /// Fills bytes that are as many as the records of the last plan have; none where they are not.
    pub fn fill(&self, reads: &[Read<'_>], place: Place, mut out: &mut [u8]) -> Option<()> {
        let plan = &self.plan;
        let settings = &self.settings;
        for (message, &physical_offset) in plan.messages.iter().zip(&plan.physical_offsets) {
            let send = plan.sends.get(message.send)?;
            let read = reads.get(send.read)?;
            let (record, rest) = out.split_at_mut_checked(message.size)?;
            out = rest;
            Record {
                queue_id: send.queue_id,
                flag: message.flag,
                queue_offset: message.queue_offset,
                physical_offset,
                sys_flag: send.sys_flag,
                born_timestamp_ms: send.born_timestamp_ms,
                born_host: read.peer_host,
                store_timestamp_ms: place.store_timestamp_ms,
                store_host: &settings.store_host,
                reconsume_times: send.reconsume_times,
                prepared_transaction_offset: send.prepared_transaction_offset,
                body: read.bytes.get(message.body_at..message.body_end)?,
                topic: &self.topics.get(send.topic)?.name,
                properties: plan.texts.get(message.text_at..message.text_end)?,
                suffix: if send.has_suffix {
                    &settings.suffix
                } else {
                    &[]
                },
                append_crc: settings.append_crc,
            }
            .write(record)?;
        }
        out.is_empty().then_some(())
    }
}
