//! Frames, headers, records and keys of RocketMQ: pure functions, tested without Python.

pub mod checksum;
