//! The queues that sends may go to, as they were learned.

use std::collections::HashMap;

use crate::hash::hash_text;

const MAX_TOPIC_BYTES: usize = 127;

/// One queue.
#[derive(Clone, Debug)]
pub struct Queue {
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
    /// The round that touched it last.
    pub round: u64,
    /// Its place among the topics of that round.
    pub place: usize,
    by_id: HashMap<i32, usize>,
}

impl Topic {
    /// Returns the number of one of its queues.
    #[must_use]
    pub fn queue(&self, queue_id: i32) -> Option<usize> {
        self.by_id.get(&queue_id).copied()
    }
}

/// The numbers of a topic and of one of its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// That of the topic.
    pub topic: usize,
    /// That of the queue, among those of all topics.
    pub queue: usize,
}

/// All topics and queues, by their numbers.
#[derive(Debug, Default)]
pub struct Topics {
    pub(crate) all: Vec<Topic>,
    pub(crate) queues: Vec<Queue>,
    by_name: HashMap<Vec<u8>, usize>,
    last: usize,
}

impl Topics {
    /// Adds a queue where it is not known, and returns its numbers, which are the next ones then;
    /// none where the name of the topic is one that needs a closer look.
    pub fn learn(&mut self, name: &[u8], queue_id: i32) -> Option<Numbers> {
        let topic = match self.by_name.get(name) {
            Some(&known) => known,
            None => self.add(name)?,
        };
        let by_id = &mut self.all.get_mut(topic)?.by_id;
        let queue = *by_id.entry(queue_id).or_insert(self.queues.len());
        if queue == self.queues.len() {
            self.queues.push(Queue { round: 0, place: 0 });
        }
        Some(Numbers { topic, queue })
    }

    fn add(&mut self, name: &[u8]) -> Option<usize> {
        let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(byte);
        if name.is_empty() || name.len() > MAX_TOPIC_BYTES || !name.iter().all(is_legal) {
            return None;
        }
        let number = self.all.len();
        self.all.push(Topic {
            name: name.to_vec(),
            key_seed: hash_text(hash_text(0, name)?, b"#")?,
            round: 0,
            place: 0,
            by_id: HashMap::new(),
        });
        self.by_name.insert(name.to_vec(), number);
        Some(number)
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

    /// Returns a queue of a topic that sends do not name, by both their names.
    #[must_use]
    pub fn own(&self, name: &[u8], queue_id: i32) -> Option<(Numbers, &Topic)> {
        let number = *self.by_name.get(name)?;
        let topic = self.all.get(number)?;
        let queue = topic.queue(queue_id)?;
        let numbers = Numbers {
            topic: number,
            queue,
        };
        Some((numbers, topic))
    }

    /// Returns a topic by its number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Topic> {
        self.all.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::{Numbers, Topics};

    #[test]
    fn queues_have_numbers_of_their_own() {
        let mut topics = Topics::default();
        let numbers = |topic, queue| Some(Numbers { topic, queue });
        assert_eq!(topics.learn(b"a", 5), numbers(0, 0));
        assert_eq!(topics.learn(b"b", 5), numbers(1, 1));
        assert_eq!(topics.learn(b"a", 1_000_000), numbers(0, 2));
        assert_eq!(topics.learn(b"a", 5), numbers(0, 0));
        assert_eq!((topics.find(b"b"), topics.find(b"a")), (Some(1), Some(0)));
        assert_eq!(topics.find(b"c"), None);
        let topic = topics.get(0).expect("is there");
        assert_eq!(topic.queue(1_000_000), Some(2));
        assert_eq!((topic.queue(4), topic.queue(-1)), (None, None));
    }

    #[test]
    fn names_that_need_a_closer_look_are_not_learned() {
        let mut topics = Topics::default();
        for name in [&b""[..], b"a.b", "\u{e9}".as_bytes(), &[b'a'; 128]] {
            assert_eq!(topics.learn(name, 0), None);
        }
    }
}
