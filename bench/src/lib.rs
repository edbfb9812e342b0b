//! Baselines of ringcat: what the engine does without protocol and container, so that their cost
//! can be told from the cost of moving bytes.
//!
//! | module | what it is |
//! |---|---|
//! | [`bare_ring`] | answers every request head with fixed bytes, on the engine's native backend |
//! | [`head_ends`] | counts the ends of request heads in a stream of bytes |
//!
//! The program `bare-ring` serves [`bare_ring::BareRing`] on one core.

#![forbid(unsafe_code)]

pub mod bare_ring;
pub mod head_ends;
