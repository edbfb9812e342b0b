//! The name of an operation in the 64 bits that travel with it: `stamp:24 | slot:32 | kind:8`.

use crate::key::ConnKey;

/// What an operation does, and so who hears of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Receives for the connection in the slot.
    Recv = 1,
    /// Cancels the connection's receive.
    RecvCancel = 2,
    /// Sends for the connection.
    Send = 3,
    /// Watches for the peer's departure.
    Watch = 4,
    /// Cancels the watch.
    WatchCancel = 5,
    /// Closes the connection's descriptor.
    Close = 6,
    /// Connects.
    Connect = 7,
    /// Accepts for the listener in the slot.
    Accept = 8,
    /// Cancels the listener's accept.
    AcceptCancel = 9,
    /// Polls the wake descriptor.
    Wake = 10,
    /// The file operation in the slot.
    File = 11,
    /// Cancels everything at the end.
    CancelAll = 12,
    /// Does nothing, for the probe.
    Nop = 13,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Recv,
        Self::RecvCancel,
        Self::Send,
        Self::Watch,
        Self::WatchCancel,
        Self::Close,
        Self::Connect,
        Self::Accept,
        Self::AcceptCancel,
        Self::Wake,
        Self::File,
        Self::CancelAll,
        Self::Nop,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// The name of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserData {
    /// What the operation does.
    pub(crate) kind: Kind,
    /// For which slot of the slab that its kind belongs to.
    pub(crate) slot: u32,
    /// For which use of the slot; 24 bits.
    pub(crate) stamp: u32,
}

impl UserData {
    /// An operation of a connection.
    #[inline]
    pub(crate) fn of(kind: Kind, conn: ConnKey) -> Self {
        Self { kind, slot: conn.slot, stamp: conn.stamp }
    }

    /// An operation of something that is not reused: a listener, the wake.
    pub(crate) fn of_index(kind: Kind, slot: u32) -> Self {
        Self { kind, slot, stamp: 0 }
    }

    /// The slot and stamp as a connection's name.
    #[inline]
    pub(crate) fn conn(self) -> ConnKey {
        ConnKey { slot: self.slot, stamp: self.stamp }
    }

    /// The 64 bits.
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        debug_assert_eq!(self.stamp & !ConnKey::STAMP_MASK, 0, "a stamp of 24 bits");
        u64::from(self.stamp) << 40 | u64::from(self.slot) << 8 | self.kind as u64
    }

    /// What the 64 bits say; `None` if this program did not make them.
    #[inline]
    pub(crate) fn unpack(bits: u64) -> Option<Self> {
        let kind = Kind::from_byte(bits as u8)?;
        Some(Self { kind, slot: (bits >> 8) as u32, stamp: (bits >> 40) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back_with_its_slot_and_stamp() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
            for (slot, stamp) in [(0, 0), (1, 1), (u32::MAX, ConnKey::STAMP_MASK), (0x1234_5678, 7)]
            {
                let name = UserData { kind, slot, stamp };
                assert_eq!(UserData::unpack(name.pack()), Some(name));
            }
        }
        assert_eq!(UserData::unpack(0), None);
        assert_eq!(UserData::unpack(14), None);
        assert_eq!(UserData::unpack(255), None);
    }
}
