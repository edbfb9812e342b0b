//! A list that is nearly always empty, in a pointer. Parked requests hold several each, and what
//! they do not use should not cost them the three words of a `Vec`.

use std::ops::{Deref, DerefMut};

/// A `Vec` behind a pointer, which is there once something was put in.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "one word in place of three is the point")]
pub struct Few<T>(Option<Box<Vec<T>>>);

impl<T: 'static> Few<T> {
    const NONE: &'static Vec<T> = &Vec::new();

    /// A list with nothing in it.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Puts more in, and takes no memory for none.
    pub fn extend(&mut self, more: impl IntoIterator<Item = T>) {
        let mut more = more.into_iter().peekable();
        if more.peek().is_some() {
            Vec::extend(self, more);
        }
    }

    /// Forgets all, and takes no memory for it.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Back to so many, and takes no memory for it.
    pub fn truncate(&mut self, count: usize) {
        if let Some(list) = &mut self.0 {
            list.truncate(count);
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(list: Vec<T>) -> Self {
        Self((!list.is_empty()).then(|| Box::new(list)))
    }
}

impl<T> From<Few<T>> for Vec<T> {
    fn from(few: Few<T>) -> Self {
        few.0.map_or_else(Self::new, |list| *list)
    }
}

impl<T: 'static> Deref for Few<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        self.0.as_deref().unwrap_or(Self::NONE)
    }
}

impl<T: 'static> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        self.0.get_or_insert_default()
    }
}

const _: () = assert!(size_of::<Few<String>>() == size_of::<usize>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_memory_with_the_first_entry() {
        let mut few: Few<u32> = Few::default();
        few.clear();
        few.truncate(3);
        few.extend(None);
        assert!(few.is_empty() && few.0.is_none());
        assert!(Few::from(Vec::<u32>::new()).0.is_none());
        few.extend([1, 2, 3]);
        few.truncate(2);
        assert_eq!(few.iter().sum::<u32>(), 3);
        assert_eq!(Vec::from(few), [1, 2]);
    }
}
