//! Frames, headers, records and keys of RocketMQ: pure functions, tested without Python.

pub mod checking;
pub mod checksum;
pub mod places;
pub mod property_text;
pub mod stored_record;
