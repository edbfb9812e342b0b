//! The kernel's memory for sockets, of the whole machine: the slabs that each connection has
//! entries in, and the pages of TCP's buffers. Both ends of a connection over loopback are in it,
//! and what other programs do meanwhile.

use std::fs;

/// The slabs: a TCP socket, its inode, its open file, and operations of io_uring under way.
const SLABS: [&str; 4] = ["TCP", "sock_inode_cache", "filp", "io_kiocb"];
const PAGE_BYTES: u64 = 4096;

/// Bytes by what they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelMemory(Vec<(&'static str, u64)>);

impl KernelMemory {
    /// The memory now; `None` if this user may not read `/proc/slabinfo`.
    pub(crate) fn now() -> Option<Self> {
        let slabs = fs::read_to_string("/proc/slabinfo").ok()?;
        let sockets = fs::read_to_string("/proc/net/sockstat").ok()?;
        Self::parse(&slabs, &sockets)
    }

    fn parse(slabs: &str, sockets: &str) -> Option<Self> {
        let mut parts = Vec::new();
        for name in SLABS {
            // A kernel may keep the entries of a slab in another one of their size.
            parts.extend(slabs.lines().find_map(|line| slab_bytes(line, name)).map(|b| (name, b)));
        }
        let line = sockets.lines().find_map(|line| line.strip_prefix("TCP:"))?;
        let mut words = line.split_ascii_whitespace();
        words.find(|word| *word == "mem")?;
        let pages: u64 = words.next()?.parse().ok()?;
        parts.push(("buffers", pages * PAGE_BYTES));
        Some(Self(parts))
    }

    /// What each of `count` connections had more than `earlier`, in words.
    pub(crate) fn describe_since(&self, earlier: &Self, count: u32) -> String {
        let each = |(name, bytes): &(&'static str, u64)| {
            let before = earlier.0.iter().find(|(other, _)| other == name).map_or(0, |(_, b)| *b);
            (*name, bytes.saturating_sub(before) / u64::from(count))
        };
        let parts: Vec<(&str, u64)> = self.0.iter().map(each).collect();
        let sum: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        let names: Vec<String> = parts.iter().map(|(name, b)| format!("{name} {b}")).collect();
        format!("{sum} bytes ({})", names.join(", "))
    }
}

/// The bytes in use of a line of slabinfo(5), if it is that of `name`.
fn slab_bytes(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|word| *word == name)?;
    let active: u64 = words.next()?.parse().ok()?;
    let size: u64 = words.nth(1)?.parse().ok()?;
    Some(active * size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_slabs_and_buffers() {
        let slabs = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize>\n\
            TCPv6 9 26 2496 13\nTCP 10 26 2000 13 8 : tunables\nfilp 20 30 100 1\n";
        let sockets = "sockets: used 11\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 5\n";
        let memory = KernelMemory::parse(slabs, sockets).unwrap();
        assert_eq!(memory.0, [("TCP", 20_000), ("filp", 2000), ("buffers", 5 * 4096)]);
        let none = KernelMemory(Vec::new());
        let text = memory.describe_since(&none, 10);
        assert_eq!(text, "4248 bytes (TCP 2000, filp 200, buffers 2048)");
        assert_eq!(KernelMemory::parse(slabs, ""), None);
    }
}
