//! Mapper.
