//! Messages that waited in a topic of the broker, made of their records again: delayed ones that
//! are due, and half messages whose transaction is committed.
//!
//! The body, the producer's data and the properties stay. These properties go:
//!
//! ```text
//! delayed  MAILBOAT_DELIVER_MS, MAILBOAT_DELAY_MS, __CRC32#
//! half     TRAN_MSG, REAL_TOPIC, REAL_QID, __CRC32#
//! ```

use crate::checksum::CRC_PROPERTY_BYTES;
use crate::header::SendHeader;
use crate::json::Text;
use crate::parked::{
    DELAY_MS, DELAYED_TOPIC, DELIVER_MS, HALF, HALF_TOPIC, REAL_QUEUE_ID, REAL_TOPIC, small_number,
};
use crate::plan::Plan;
use crate::properties;
use crate::property_text::distinct_entries;
use crate::record::{BARE_BYTES, CLIENT_BITS, FILLER_BYTES};
use crate::round::{Place, QueueEnds, Read, Rounds, Target};
use crate::stored_record::StoredRecord;

const CRC: &[u8] = b"__CRC32#";
const CHECK_TIMES: &[u8] = b"TRANSACTION_CHECK_TIMES";
const COMMITTED: i32 = 0x8;
/// Bytes of a record before its body, beside the hosts.
const FIELDS_BYTES: usize = 72;
const ANY_HOST_V6: i32 = 0x30;

/// Why messages have waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// They were delayed.
    Delayed,
    /// They were half messages.
    Half,
}

impl Waited {
    /// Returns the topic in which they waited.
    #[must_use]
    pub fn topic(self) -> &'static [u8] {
        match self {
            Waited::Delayed => DELAYED_TOPIC,
            Waited::Half => HALF_TOPIC,
        }
    }

    fn drops(self, name: &[u8]) -> bool {
        let names: &[&[u8]] = match self {
            Waited::Delayed => &[DELIVER_MS, DELAY_MS, CRC],
            Waited::Half => &[HALF, REAL_TOPIC, REAL_QUEUE_ID, CRC],
        };
        names.contains(&name)
    }
}

impl Rounds {
    /// Plans to store messages where they belong, each read being the checked record of one.
    ///
    /// It stops before the first one that is odd or that has no room; `taken` is left empty.
    pub fn plan_restored(
        &mut self,
        records: &[Read<'_>],
        waited: Waited,
        place: Place,
        ends: &mut dyn QueueEnds,
    ) -> &Plan {
        self.plan.begin();
        for (index, record) in records.iter().enumerate() {
            let marks = self.plan.marks();
            if self.restore(index, record, waited, place, ends).is_none() {
                self.plan.give_back(&marks);
                break;
            }
        }
        &self.plan
    }

    fn restore(
        &mut self,
        index: usize,
        read: &Read<'_>,
        waited: Waited,
        place: Place,
        ends: &mut dyn QueueEnds,
    ) -> Option<()> {
        let record = StoredRecord::read(read.bytes)?;
        let is_odd = record.topic != waited.topic()
            || record.sys_flag & !(CLIENT_BITS | ANY_HOST_V6) != 0
            || record.body.len() > self.settings.max_body_bytes;
        if is_odd {
            return None;
        }
        let text_at = self.plan.texts.len();
        let (mut topic, mut queue_id) = (None, None);
        for (name, value) in distinct_entries(record.properties)? {
            if name == REAL_TOPIC {
                topic = Some(value);
            } else if name == REAL_QUEUE_ID {
                queue_id = small_number(value);
            } else if name == CHECK_TIMES {
                return None;
            }
            if !waited.drops(name) {
                let texts = &mut self.plan.texts;
                texts.extend_from_slice(name);
                texts.push(1);
                texts.extend_from_slice(value);
                texts.push(2);
            }
        }
        let (topic, queue_id) = (topic?, queue_id?);
        if topic == DELAYED_TOPIC || topic == HALF_TOPIC {
            return None;
        }
        let (numbers, known) = self.topics.own(topic, queue_id)?;
        let mut found = properties::read_stored(self.plan.texts.get(text_at..)?)?;
        // It is kept, and nobody waits for an answer here.
        found.wait = None;
        found.waits_not = false;
        let settings = &self.settings;
        let hosts = read.peer_host.len() + settings.store_host.len();
        let crc_bytes = usize::from(settings.append_crc) * CRC_PROPERTY_BYTES;
        let is_half = waited == Waited::Half;
        let target = Target {
            numbers,
            queue_id,
            key_seed: known.key_seed,
            fixed_bytes: BARE_BYTES + hosts + topic.len() + crc_bytes,
            sys_flag: record.sys_flag & CLIENT_BITS | if is_half { COMMITTED } else { 0 },
            prepared_transaction_offset: if is_half { record.physical_offset } else { 0 },
            has_suffix: false,
            deliver_ms: None,
            transaction_id: (0, 0),
        };
        let header = SendHeader {
            opaque: 0,
            is_oneway: true,
            is_batch: false,
            topic,
            is_binary: false,
            queue_id,
            sys_flag: record.sys_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            flag: record.flag,
            properties: Text {
                raw: b"",
                has_escapes: false,
            },
            reconsume_times: record.reconsume_times,
            broker_name: None,
        };
        let body_at = FIELDS_BYTES + record.born_host.len() + record.store_host.len();
        let body = body_at..body_at + record.body.len();
        let first = self.plan.messages.len();
        let room = place.room_bytes.checked_sub(self.plan.size_bytes)?;
        let size = self.add_message(&target, &found, body, text_at, record.flag, place)?;
        if size + FILLER_BYTES > room {
            return None;
        }
        self.commit(index, &header, &target, first, place, ends)
    }
}
