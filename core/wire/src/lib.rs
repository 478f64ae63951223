//! Frames, headers, records and keys of RocketMQ: pure functions, tested without Python.

pub mod answer;
pub mod batch;
pub mod checking;
pub mod checksum;
pub mod frame;
pub mod hash;
pub mod header;
pub mod json;
pub mod places;
pub mod plan;
pub mod properties;
pub mod property_text;
pub mod record;
pub mod round;
pub mod sql_condition;
pub mod sql_program;
pub mod sql_values;
pub mod stored_record;
pub mod topics;
