//! CPUs: which ones the process may use, lists of them in the settings, pinning.
//!
//! "CPU" is the number that the system gives it. A core of the engine is a thread and has a number
//! of its own.

use std::{fmt, num::ParseIntError, ops::RangeInclusive, str::FromStr, thread};

use core_affinity::CoreId;

/// CPU numbers in the order in which they were given, each once, at least one.
///
/// Parses from a list of numbers and ranges: `0,2-3`. `Display` writes the numbers one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSet {
    ids: Vec<usize>,
}

impl CpuSet {
    /// A CPU's number is below this: what an affinity mask of the system has room for.
    pub const ID_END: usize = 1024;

    /// The numbers, in the order given.
    pub fn ids(&self) -> &[usize] {
        &self.ids
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        let mut ids = Vec::new();
        for part in text.split(',') {
            let fail = |reason| ParseCpuSetError { part: part.to_owned(), reason };
            for id in parse_part(part.trim()).map_err(fail)? {
                if ids.contains(&id) {
                    return Err(fail(Reason::Twice(id)));
                }
                ids.push(id);
            }
        }
        Ok(Self { ids })
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.ids.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{id}")?;
        }
        Ok(())
    }
}

/// Why a list of CPUs was not understood; names the bad part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseCpuSetError {
    part: String,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    Empty,
    Number(ParseIntError),
    TooHigh(usize),
    Backwards,
    Twice(usize),
}

impl fmt::Display for ParseCpuSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {:?} of the list of CPUs ", self.part)?;
        match &self.reason {
            Reason::Empty => write!(f, "is empty"),
            Reason::Number(error) => write!(f, "is neither a number nor a range: {error}"),
            Reason::TooHigh(id) => {
                write!(f, "has CPU {id}, the highest number is {}", CpuSet::ID_END - 1)
            }
            Reason::Backwards => write!(f, "ends before it begins"),
            Reason::Twice(id) => write!(f, "has CPU {id} a second time"),
        }
    }
}

impl std::error::Error for ParseCpuSetError {}

/// The numbers of the CPUs that the calling thread may run on, ascending. Empty if the system does
/// not tell. To be asked before the thread is pinned.
pub fn allowed() -> Vec<usize> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    ids.into_iter().map(|core| core.id).collect()
}

/// How many core threads to run where nothing is configured: as many as there are CPUs allowed,
/// and no more than the CPU quota of the process pays for; at least 1.
pub fn default_core_count() -> usize {
    let quota = thread::available_parallelism().map_or(1, usize::from);
    match allowed().len() {
        0 => quota,
        allowed => quota.min(allowed),
    }
}

/// Has the calling thread run on CPU `id` only. `false` if the system refuses: the CPU is absent,
/// offline or not allowed.
pub fn pin_current_thread(id: usize) -> bool {
    // A mask has no room for a higher number, and the crate does not check.
    id < CpuSet::ID_END && core_affinity::set_for_current(CoreId { id })
}

fn parse_part(part: &str) -> Result<RangeInclusive<usize>, Reason> {
    if part.is_empty() {
        return Err(Reason::Empty);
    }
    let (first, last) = match part.split_once('-') {
        Some((first, last)) => (parse_id(first)?, parse_id(last)?),
        None => {
            let id = parse_id(part)?;
            (id, id)
        }
    };
    if last < first { Err(Reason::Backwards) } else { Ok(first..=last) }
}

fn parse_id(text: &str) -> Result<usize, Reason> {
    let id = text.trim().parse().map_err(Reason::Number)?;
    if id < CpuSet::ID_END { Ok(id) } else { Err(Reason::TooHigh(id)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn check(text: &str, expected: Result<&[usize], &str>) {
        let parsed = text.parse::<CpuSet>();
        let parsed = parsed.as_ref().map(CpuSet::ids).map_err(ToString::to_string);
        assert_eq!(parsed, expected.map_err(str::to_owned), "{text:?}");
    }

    #[test]
    fn lists_are_parsed_and_bad_parts_named() {
        check("0", Ok(&[0]));
        check("0,2-3", Ok(&[0, 2, 3]));
        check(" 5 , 1 - 2 ", Ok(&[5, 1, 2]));
        check("1023", Ok(&[1023]));
        check("", Err(r#"part "" of the list of CPUs is empty"#));
        check("0,,1", Err(r#"part "" of the list of CPUs is empty"#));
        check("3-1", Err(r#"part "3-1" of the list of CPUs ends before it begins"#));
        check("0-2,1", Err(r#"part "1" of the list of CPUs has CPU 1 a second time"#));
        check(
            "0-99999",
            Err(r#"part "0-99999" of the list of CPUs has CPU 99999, the highest number is 1023"#),
        );
        for part in ["x", "1-", "-1", "1-2-3", "99999999999999999999999"] {
            let error = format!("0,{part}").parse::<CpuSet>().unwrap_err().to_string();
            assert!(error.contains(&format!("part {part:?} of")), "{error}");
        }
    }

    #[test]
    fn a_list_is_written_as_it_is_read() {
        let set: CpuSet = "4,0-2".parse().unwrap();
        assert_eq!(set.to_string(), "4,0,1,2");
        assert_eq!(set.to_string().parse(), Ok(set));
    }

    #[test]
    fn a_thread_is_pinned_to_an_allowed_cpu_only() {
        let allowed = allowed();
        let last = *allowed.last().unwrap();
        assert!((1..=allowed.len()).contains(&default_core_count()));
        // A thread of its own, whose mask ends with it.
        let pinned = thread::spawn(move || {
            assert!(!pin_current_thread(CpuSet::ID_END));
            assert!(pin_current_thread(last));
            super::allowed()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
    }
}
