//! Numbered places that are used again: what makes posting free of allocation once a link has warmed up.

/// Values at stable small numbers.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Slab {
            items: Vec::with_capacity(n),
            free: Vec::with_capacity(n),
        }
    }

    /// The number that the next `insert` will use.
    pub(crate) fn next(&self) -> u32 {
        self.free
            .last()
            .copied()
            .unwrap_or(u32::try_from(self.items.len()).unwrap_or(u32::MAX))
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.items[at as usize] = Some(item);
                at
            }
            None => {
                let at = self.next();
                self.items.push(Some(item));
                at
            }
        }
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.items.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.items.get_mut(at as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let item = self.items.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(item)
    }

    /// One past the largest number in use: for walks that remove on their way.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }

    /// How many are in use.
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut s = Slab::with_capacity(2);
        assert_eq!((s.insert('a'), s.insert('b')), (0, 1));
        assert_eq!(s.remove(0), Some('a'));
        assert_eq!(s.remove(0), None);
        assert_eq!(s.next(), 0);
        assert_eq!(s.insert('c'), 0);
        assert_eq!(
            (s.get(0), s.get(1), s.get(2)),
            (Some(&'c'), Some(&'b'), None)
        );
        assert_eq!((s.len(), s.end()), (2, 2));
    }
}
