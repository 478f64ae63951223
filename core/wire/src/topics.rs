//! The topics that sends may go to, as they were learned.

use std::collections::HashMap;

use crate::hash::hash_text;

const MAX_TOPIC_BYTES: usize = 127;

/// One queue of a topic.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Whether the queue is there; messages for one that is not are left.
    pub is_there: bool,
    /// The round that touched it last.
    pub round: u64,
    /// Its place among the queues of that round.
    pub place: usize,
}

/// One topic.
#[derive(Clone, Debug)]
pub struct Topic {
    /// The name.
    pub name: Vec<u8>,
    /// The hash of the name and `#`, from which those of keys go on.
    pub key_seed: u32,
    /// The queues that take messages.
    pub queues: Vec<Queue>,
    /// The round that touched it last.
    pub round: u64,
    /// Its place among the topics of that round.
    pub place: usize,
}

/// All topics.
#[derive(Debug, Default)]
pub struct Topics {
    by_name: HashMap<Vec<u8>, usize>,
    all: Vec<Topic>,
    last: usize,
}

impl Topics {
    /// Adds a topic or replaces one of its name, and returns its number; none where the name is
    /// one that needs a closer look.
    pub fn learn(&mut self, name: &[u8], queues: impl Iterator<Item = bool>) -> Option<usize> {
        let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(byte);
        if name.is_empty() || name.len() > MAX_TOPIC_BYTES || !name.iter().all(is_legal) {
            return None;
        }
        let topic = Topic {
            name: name.to_vec(),
            key_seed: hash_text(hash_text(0, name)?, b"#")?,
            queues: queues
                .map(|is_there| Queue {
                    is_there,
                    round: 0,
                    place: 0,
                })
                .collect(),
            round: 0,
            place: 0,
        };
        let number = *self.by_name.entry(name.to_vec()).or_insert(self.all.len());
        match self.all.get_mut(number) {
            Some(known) => *known = topic,
            None => self.all.push(topic),
        }
        Some(number)
    }

    /// Forgets all topics.
    pub fn forget(&mut self) {
        self.by_name.clear();
        self.all.clear();
        self.last = 0;
    }

    /// Returns the number of a topic.
    pub fn find(&mut self, name: &[u8]) -> Option<usize> {
        // Most sends of a round go to one topic.
        if self
            .all
            .get(self.last)
            .is_some_and(|topic| topic.name == name)
        {
            return Some(self.last);
        }
        self.last = *self.by_name.get(name)?;
        Some(self.last)
    }

    /// Returns a topic of the broker with its number.
    #[must_use]
    pub fn own(&self, name: &[u8]) -> Option<(usize, &Topic)> {
        let number = *self.by_name.get(name)?;
        Some((number, self.all.get(number)?))
    }

    /// Returns a topic by its number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Topic> {
        self.all.get(number)
    }

    /// Returns a topic by its number, to note what a round does with it.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Topic> {
        self.all.get_mut(number)
    }
}

#[cfg(test)]
mod tests {
    use super::Topics;

    #[test]
    fn topics_are_found_until_they_are_forgotten() {
        let mut topics = Topics::default();
        assert_eq!(topics.learn(b"a", [true, false].into_iter()), Some(0));
        assert_eq!(topics.learn(b"b", [true].into_iter()), Some(1));
        assert_eq!(topics.learn(b"a", [true].into_iter()), Some(0));
        assert_eq!((topics.find(b"b"), topics.find(b"a")), (Some(1), Some(0)));
        assert_eq!(topics.get(0).map(|topic| topic.queues.len()), Some(1));
        topics.forget();
        assert_eq!(topics.find(b"a"), None);
    }

    #[test]
    fn names_that_need_a_closer_look_are_not_learned() {
        let mut topics = Topics::default();
        for name in [&b""[..], b"a.b", "\u{e9}".as_bytes(), &[b'a'; 128]] {
            assert_eq!(topics.learn(name, [true].into_iter()), None);
        }
    }
}
