//! Frames, headers, records and keys of RocketMQ: pure functions, tested without Python.

pub mod answer;
pub mod batch;
pub mod binary;
pub mod checking;
pub mod checksum;
pub mod frame;
pub mod grants;
pub mod hash;
pub mod header;
pub mod index;
pub mod json;
pub mod marks;
pub mod parked;
pub mod places;
pub mod plan;
pub mod properties;
pub mod property_text;
pub mod record;
pub mod restored;
pub mod round;
pub mod scan;
pub mod sql_condition;
pub mod sql_program;
pub mod sql_values;
pub mod stored_record;
pub mod topics;
