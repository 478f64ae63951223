//! Records of the log, many at once, as a start reads them again: what is derived from each.
//!
//! A scan takes plain records, one after the other, and ends before the first that needs a closer
//! look: one that is not whole, not for its place or damaged, what is no record at all, and what
//! has rules of its own (`Scan::take`). A ConsumeQueue unit is 20 bytes, big-endian, a row for the
//! index 12, in native order:
//!
//! ```text
//! position  size  unit               position  size  row
//! 0         8     physical offset    0         4     hash of topic, `#` and key
//! 8         4     record size        4         8     physical offset
//! 12        8     tagsCode
//! ```

use std::collections::HashMap;
use std::ops::Range;

use crate::hash::{hash_text, tags_code};
use crate::index::ROW_BYTES;
use crate::property_text::entries;
use crate::record::unit;
use crate::stored_record::StoredRecord;

/// Of a message that is half of a transaction, and of the note that it was rolled back.
const PREPARED_OR_ROLLBACK: i32 = 0x4;
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
const MAX_TOPIC_BYTES: usize = 255;
const MAX_QUEUE_OFFSET: i64 = 1 << 58;

/// What to make of records.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Check the checksums.
    pub sums: bool,
    /// Make rows for the index.
    pub with_keys: bool,
    /// At most so many rows.
    pub most_rows: usize,
}

/// Messages of one queue, each the next one of the queue.
#[derive(Debug)]
pub struct ScannedQueue<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// Where the first message stands in it.
    pub queue_offset: i64,
    /// Where the first record lies.
    pub physical_offset: i64,
    /// A unit for each message.
    pub units: Vec<u8>,
    /// The physical offset behind the last record.
    pub end: i64,
    next_offset: i64,
    key_seed: u32,
}

/// Keys of messages that were stored in one millisecond.
#[derive(Debug)]
pub struct Keys {
    /// Where the first record lies.
    pub physical_offset: i64,
    /// When the messages were stored.
    pub store_timestamp_ms: i64,
    /// Which bytes of `Scan::rows` are theirs.
    pub rows: Range<usize>,
}

/// What was made of records that lie back to back.
#[derive(Debug, Default)]
pub struct Scan<'a> {
    /// Bytes of the records.
    pub size: usize,
    /// How many there are.
    pub count: usize,
    /// When the last one was stored, ms.
    pub last_store_timestamp_ms: i64,
    /// The highest of all store times, ms.
    pub newest_store_timestamp_ms: i64,
    /// Their queues in the order of first touch.
    pub queues: Vec<ScannedQueue<'a>>,
    /// Rows for the index, in the order of the log.
    pub rows: Vec<u8>,
    /// The same by store time.
    pub keys: Vec<Keys>,
    places: HashMap<(&'a [u8], i32), usize>,
}

impl<'a> Scan<'a> {
    /// Takes the records at the beginning of some bytes of the log.
    #[must_use]
    pub fn of(block: &'a [u8], physical_offset: i64, options: Options) -> Self {
        let mut scan = Self::default();
        let mut here = Some(physical_offset);
        while let Some(at) = here {
            let record = block.get(scan.size..).and_then(StoredRecord::read);
            let Some(record) = record.filter(|record| record.physical_offset == at) else {
                break;
            };
            let Some(end) = scan.take(&record, options) else {
                break;
            };
            scan.size += record.bytes.len();
            here = Some(end);
        }
        // The last one looked at may have been the first of its queue, and was not taken.
        scan.queues.retain(|queue| !queue.units.is_empty());
        scan
    }

    /// Takes a record, and returns the physical offset behind it; none, and it is not taken, where
    ///
    /// - a checksum does not hold, or it ends as a torn one does: in a zero,
    /// - it is no plain message: of a transaction that is not committed, or one that waits for its
    ///   time and has that in the place of the tagsCode,
    /// - its topic is no folder's name or no text, or its place in the queue none that a broker
    ///   gives,
    /// - it is not the next of its queue,
    /// - its tag or one of its keys is no text, or it should have a key and has none,
    /// - there would be too many rows.
    fn take(&mut self, record: &StoredRecord<'a>, options: Options) -> Option<i64> {
        let size = i32::try_from(record.bytes.len()).ok()?;
        let end = record.physical_offset.checked_add(i64::from(size))?;
        let is_plain = record.sys_flag & PREPARED_OR_ROLLBACK == 0
            && record.queue_id >= 0
            && (0..=MAX_QUEUE_OFFSET).contains(&record.queue_offset);
        if !is_plain
            || record.bytes.last() == Some(&0)
            || (options.sums && !record.checksum_holds())
        {
            return None;
        }
        let place = self.place_of(record)?;
        let queue = self.queues.get(place)?;
        if queue.next_offset != record.queue_offset {
            return None;
        }
        let key_seed = queue.key_seed;
        let found = Found::in_text(record.properties);
        let code = found.tags.map_or(Some(0), tags_code)?;
        if options.with_keys {
            let before = self.rows.len();
            if self.put_keys(record, &found, key_seed).is_none()
                || self.rows.len() == before
                || self.rows.len() / ROW_BYTES > options.most_rows
            {
                self.rows.truncate(before);
                return None;
            }
            self.note_keys(record, before);
        }
        let queue = self.queues.get_mut(place)?;
        let unit = unit(record.physical_offset, size, code);
        queue.units.extend_from_slice(&unit);
        queue.next_offset += 1;
        queue.end = end;
        self.last_store_timestamp_ms = record.store_timestamp_ms;
        self.newest_store_timestamp_ms = self
            .newest_store_timestamp_ms
            .max(record.store_timestamp_ms);
        self.count += 1;
        Some(end)
    }

    /// Returns the place of a record's queue, which is added where it is not there.
    fn place_of(&mut self, record: &StoredRecord<'a>) -> Option<usize> {
        let name = (record.topic, record.queue_id);
        if let Some(&place) = self.places.get(&name) {
            return Some(place);
        }
        let topic = std::str::from_utf8(record.topic).ok()?;
        let is_folder = !matches!(topic, "" | "." | "..")
            && topic.len() <= MAX_TOPIC_BYTES
            && !topic.contains(['/', '\0']);
        if !is_folder || topic == SCHEDULE_TOPIC {
            return None;
        }
        self.queues.push(ScannedQueue {
            topic,
            queue_id: record.queue_id,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            units: Vec::new(),
            end: record.physical_offset,
            next_offset: record.queue_offset,
            key_seed: hash_text(hash_text(0, record.topic)?, b"#")?,
        });
        let place = self.queues.len() - 1;
        self.places.insert(name, place);
        Some(place)
    }

    /// Adds a row for each key; none where one is no text.
    fn put_keys(
        &mut self,
        record: &StoredRecord<'_>,
        found: &Found<'_>,
        key_seed: u32,
    ) -> Option<()> {
        let several = found.keys.into_iter();
        let several = several.flat_map(|keys| keys.split(|&byte| byte == b' '));
        for key in found.unique_key.into_iter().chain(several) {
            if !key.is_empty() {
                self.rows
                    .extend_from_slice(&hash_text(key_seed, key)?.to_ne_bytes());
                self.rows
                    .extend_from_slice(&record.physical_offset.to_ne_bytes());
            }
        }
        Some(())
    }

    /// Notes that the rows from `begin` on are those of a record.
    fn note_keys(&mut self, record: &StoredRecord<'_>, begin: usize) {
        let end = self.rows.len();
        match self.keys.last_mut() {
            Some(keys) if keys.store_timestamp_ms == record.store_timestamp_ms => {
                keys.rows.end = end;
            }
            _ => self.keys.push(Keys {
                physical_offset: record.physical_offset,
                store_timestamp_ms: record.store_timestamp_ms,
                rows: begin..end,
            }),
        }
    }
}

/// Values of the properties from which something is derived; of a name that comes again the last.
#[derive(Debug, Default)]
struct Found<'a> {
    unique_key: Option<&'a [u8]>,
    keys: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    fn in_text(text: &'a [u8]) -> Self {
        let mut found = Self::default();
        for (name, value) in entries(text) {
            match name {
                b"UNIQ_KEY" => found.unique_key = Some(value),
                b"KEYS" => found.keys = Some(value),
                b"TAGS" => found.tags = Some(value),
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Scan};
    use crate::hash::hash_text;
    use crate::stored_record::tests::{JAVA_RECORD, with_checksum};

    const ALL: Options = Options {
        sums: true,
        with_keys: false,
        most_rows: 100,
    };
    const KEYS: Options = Options {
        with_keys: true,
        sums: false,
        ..ALL
    };

    /// A record of queue 1 with another place, and with these properties.
    fn record(physical_offset: i64, queue_offset: i64, text: &[u8]) -> Vec<u8> {
        let mut record = JAVA_RECORD[..JAVA_RECORD.len() - 15].to_vec();
        record.extend(u16::try_from(text.len()).expect("short").to_be_bytes());
        record.extend(text);
        let size = i32::try_from(record.len()).expect("short");
        record[..4].copy_from_slice(&size.to_be_bytes());
        record[20..28].copy_from_slice(&queue_offset.to_be_bytes());
        record[28..36].copy_from_slice(&physical_offset.to_be_bytes());
        record
    }

    fn size(bytes: &[u8]) -> i64 {
        i64::try_from(bytes.len()).expect("small")
    }

    #[test]
    fn records_of_one_queue_are_units() {
        let first = with_checksum();
        let end = 1000 + size(&first);
        let block = [&first[..], &record(end, 3, b"TAGS\x01TagB")].concat();
        let scan = Scan::of(&block, 1000, ALL);
        assert_eq!((scan.size, scan.count), (block.len(), 2));
        assert_eq!(scan.last_store_timestamp_ms, 1_700_000_000_123);
        let queue = &scan.queues[0];
        assert_eq!(
            (queue.topic, queue.queue_id, queue.queue_offset),
            ("T1", 1, 2)
        );
        assert_eq!(queue.end, 1000 + size(&block));
        assert_eq!(queue.units.len(), 40);
        assert_eq!(queue.units[..8], 1000_i64.to_be_bytes());
        // "TagA".hashCode() and "TagB".hashCode().
        assert_eq!(queue.units[12..20], 2_598_919_i64.to_be_bytes());
        assert_eq!(queue.units[20..28], end.to_be_bytes());
        assert_eq!(queue.units[32..40], 2_598_920_i64.to_be_bytes());
        assert!(scan.rows.is_empty());
    }

    #[test]
    fn keys_are_rows_the_last_of_a_name_counts() {
        let text = b"UNIQ_KEY\x01V\x02KEYS\x01a  b\x02UNIQ_KEY\x01U\x02";
        let block = record(0, 0, text);
        let scan = Scan::of(&block, 0, KEYS);
        let expected: Vec<u8> = [&b"T1#U"[..], b"T1#a", b"T1#b"]
            .iter()
            .flat_map(|key| {
                let hash = hash_text(0, key).expect("text").to_ne_bytes();
                [&hash[..], &0_i64.to_ne_bytes()].concat()
            })
            .collect();
        assert_eq!(scan.rows, expected);
        assert_eq!(scan.keys.len(), 1);
        assert_eq!(scan.keys[0].rows, 0..36);
        let few = Options {
            most_rows: 2,
            ..KEYS
        };
        let scan = Scan::of(&block, 0, few);
        assert_eq!((scan.count, scan.rows.len(), scan.keys.len()), (0, 0, 0));
    }

    #[test]
    fn what_needs_a_closer_look_ends_a_scan() {
        let good = record(0, 0, b"KEYS\x01k");
        let at = size(&good);
        let mut prepared = record(at, 1, b"KEYS\x01k");
        prepared[39] = 0x4;
        let mut negative = record(at, 1, b"KEYS\x01k");
        negative[12] = 0x80;
        for odd in [
            record(at + 1, 1, b"KEYS\x01k"),
            record(at, 2, b"KEYS\x01k"),
            record(at, 0, b"KEYS\x01k"),
            record(at, 1, b"KEYS\x01\xff"),
            record(at, 1, b"KEYS\x01k\x02TAGS\x01\xff"),
            record(at, 1, b"KEYS\x01 "),
            record(at, 1, b"TAGS\x01k"),
            record(at, 1, b"KEYS\x01k")[..90].to_vec(),
            prepared,
            negative,
            Vec::new(),
        ] {
            let block = [&good[..], &odd[..]].concat();
            let scan = Scan::of(&block, 0, KEYS);
            assert_eq!((scan.size, scan.count), (good.len(), 1));
            assert_eq!((scan.rows.len(), scan.keys[0].rows.end), (12, 12));
            assert_eq!(scan.queues[0].units.len(), 20);
        }
    }

    #[test]
    fn names_that_are_no_folders_and_places_that_nobody_gives_are_left() {
        for topic in [b"..", b"a/", b"\0a", b"\xffa"] {
            let mut block = record(0, 0, b"KEYS\x01k");
            let topic_at = block.len() - 2 - 6 - 2;
            block[topic_at..topic_at + 2].copy_from_slice(topic);
            assert_eq!(Scan::of(&block, 0, KEYS).count, 0);
        }
        assert_eq!(Scan::of(&record(0, -1, b"KEYS\x01k"), 0, KEYS).count, 0);
        let far = record(0, (1 << 58) + 1, b"KEYS\x01k");
        assert_eq!(Scan::of(&far, 0, KEYS).count, 0);
        let last = record(i64::MAX, 0, b"KEYS\x01k");
        assert_eq!(Scan::of(&last, i64::MAX, KEYS).count, 0);
    }

    #[test]
    fn mutated_blocks_never_panic_and_no_damage_is_taken() {
        let first = with_checksum();
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 40).expect("24 bits") % below
        };
        for _ in 0..100_000 {
            let mut changed = first.clone();
            for _ in 0..=next(3) {
                changed[next(first.len())] = [0, 1, 0x7F, 0x80, 0xFF, 20][next(6)];
            }
            for options in [ALL, KEYS] {
                let scan = Scan::of(&changed, 1000, options);
                assert!(scan.count <= 1);
                let name = first.len() - 20..first.len() - 11;
                if options.sums && changed[name.clone()] == first[name] && changed != first {
                    assert_eq!(scan.count, 0);
                }
            }
        }
    }
}
