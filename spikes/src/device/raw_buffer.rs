//! A buffer in a device's memory, as the seam sees it.
//!
//! # Safety
//! The address that [`DeviceVec`] gives out is the device's. It says `Space::Cuda`, for which nothing on the host side makes a reference; the fake's kernels look it up in a table, so that even a wrong one touches nothing.

use super::Stream;
use gaggle_core::{Element, Event, Space, StableBuf};
use std::{marker::PhantomData, num::NonZeroUsize, ptr::NonNull, sync::Arc};

/// Owned elements in a device's memory; freed behind the work that still uses them.
#[derive(Debug)]
pub struct DeviceVec<T> {
    /// Where it is freed.
    stream: Stream,
    at: NonZeroUsize,
    len: usize,
    ready: Option<Arc<dyn Event>>,
    _elements: PhantomData<T>,
}

impl<T: Element> DeviceVec<T> {
    /// `n` zeros.
    pub fn new(stream: &Stream, n: usize) -> DeviceVec<T> {
        let at = stream.device.alloc(n * size_of::<T>());
        DeviceVec {
            stream: stream.clone(),
            at: NonZeroUsize::new(at).unwrap_or(NonZeroUsize::MAX),
            len: n,
            ready: None,
            _elements: PhantomData,
        }
    }

    /// In the device's memory.
    pub fn addr(&self) -> usize {
        self.at.get()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// SAFETY: the block in the device's memory is this value's alone, zeroed when it was made, and stays where it is until it is dropped.
unsafe impl<T: Element> StableBuf for DeviceVec<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (NonNull::without_provenance(self.at), self.len)
    }
    fn space(&self) -> Space {
        self.stream.device.space()
    }
    fn ready(&self) -> Option<Arc<dyn Event>> {
        self.ready.clone()
    }
    fn set_ready(&mut self, event: Arc<dyn Event>) {
        self.ready = Some(event);
    }
}

impl<T> Drop for DeviceVec<T> {
    fn drop(&mut self) {
        if let Some(event) = self.ready.take() {
            self.stream.wait_for(event);
        }
        let at = self.at.get();
        self.stream.launch(move |device| device.free(at));
    }
}
