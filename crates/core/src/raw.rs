//! Memory at the seams: borrowed for a call, owned for an asynchronous operation, lent between threads.
//!
//! # Safety
//! The module erases element types and holds raw pointers.
//! A [`ViewMut`] carries the borrow it was made from; a [`Region`] owns what its pointer points to; both hand out typed slices only of the element type they were made with.
//! A [`Loan`] is the one promise that is not carried by a type: whoever makes one keeps the bytes alive and unchanged until the transport has given the transfer back.

use crate::{
    dtype::{DType, Element},
    event::Event,
};
use std::{any::Any, fmt, marker::PhantomData, ptr::NonNull, sync::Arc};

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Space {
    /// Ordinary memory of this process.
    Host,
    /// Memory that local peers have mapped.
    Registered,
    /// Memory of the CUDA device with this ordinal.
    Cuda {
        /// The device's number on this host.
        ordinal: u32,
    },
}

impl Space {
    /// Whether this process's threads can read and write it.
    pub const fn is_host(self) -> bool {
        !matches!(self, Space::Cuda { .. })
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Host => f.write_str("host"),
            Space::Registered => f.write_str("registered"),
            Space::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Owned memory whose address does not change when it is moved.
///
/// # Safety
/// `ptr..ptr+len` stays valid, initialised and reached only through this value until it is dropped; in the memory that `space` names, which stays the same. Device addresses are the device's: nobody but its backend uses them.
pub unsafe trait StableBuf: Send + 'static {
    /// What it holds.
    type Elem: Element;
    /// Address and length in elements.
    fn parts(&mut self) -> (NonNull<Self::Elem>, usize);
    /// Where it lies.
    fn space(&self) -> Space {
        Space::Host
    }
    /// What must have happened before the content is what it is meant to be: for device memory whose last kernel may still be running. A backend puts its own work behind it.
    fn ready(&self) -> Option<Arc<dyn Event>> {
        None
    }
    /// Says so: called where memory comes back that device work still writes to.
    fn set_ready(&mut self, event: Arc<dyn Event>) {
        // Host memory comes back only when nobody works on it.
        let _ = event;
    }
}

// SAFETY: a vector's heap block does not move with the vector, and it is not reached while the vector is owned elsewhere.
unsafe impl<T: Element> StableBuf for Vec<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (slice_ptr(self), self.len())
    }
}

// SAFETY: a box's heap block does not move with the box, and it is not reached while the box is owned elsewhere.
unsafe impl<T: Element> StableBuf for Box<[T]> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (slice_ptr(self), self.len())
    }
}

fn slice_ptr<T>(s: &mut [T]) -> NonNull<T> {
    // A reference is never null, so this is its own address.
    NonNull::from(s).cast()
}

/// Type-erased owned memory: what an asynchronous operation takes and gives back.
#[derive(Debug)]
pub struct Region {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    space: Space,
    /// Boxed, so that host memory, which has none, does not carry its size about.
    ready: Option<Box<Arc<dyn Event>>>,
    owner: Box<dyn Any + Send>,
}

// SAFETY: the pointer is into memory that `owner` (which is `Send`) owns and that is reached through this value alone.
unsafe impl Send for Region {}

impl Region {
    /// Takes ownership of `buf`.
    pub fn new<B: StableBuf>(buf: B) -> Self {
        let mut owner = Box::new(buf);
        let (ptr, len) = owner.parts();
        let (space, ready) = (owner.space(), owner.ready().map(Box::new));
        Region {
            ptr: ptr.cast(),
            len,
            dtype: B::Elem::DTYPE,
            space,
            ready,
            owner,
        }
    }

    /// A vector of `n` zeros of that type; `None` where there is no such memory.
    pub fn zeroed(dtype: DType, n: u64) -> Option<Region> {
        use half::{bf16, f16};
        fn of<T: Element>(n: u64) -> Option<Region> {
            try_zeroed::<T>(n).map(Region::new)
        }
        match dtype {
            DType::F32 => of::<f32>(n),
            DType::F64 => of::<f64>(n),
            DType::F16 => of::<f16>(n),
            DType::Bf16 => of::<bf16>(n),
            DType::I32 => of::<i32>(n),
            DType::I64 => of::<i64>(n),
            DType::U8 => of::<u8>(n),
            DType::I8 => of::<i8>(n),
            DType::I16 => of::<i16>(n),
            DType::U16 => of::<u16>(n),
            DType::U32 => of::<u32>(n),
            DType::U64 => of::<u64>(n),
            DType::Bool => of::<crate::Bool>(n),
        }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it lies.
    pub fn space(&self) -> Space {
        self.space
    }

    /// The elements, where they are host memory of type `T`.
    pub fn typed<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.dtype || !self.space.is_host() {
            return None;
        }
        // SAFETY: `new` took pointer and length from a `StableBuf` of this element type, host memory, borrowed here through `&mut self`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len) })
    }

    /// What must have happened before the content is what it is meant to be; see [`StableBuf::ready`].
    pub fn ready(&self) -> Option<&Arc<dyn Event>> {
        self.ready.as_deref()
    }

    /// Says so; its owner is told when it gets the memory back.
    pub fn set_ready(&mut self, event: Arc<dyn Event>) {
        self.ready = Some(Box::new(event));
    }

    /// The same memory as a view that ends with the borrow; `None` for device memory.
    pub fn view(&mut self) -> Option<ViewMut<'_>> {
        self.space.is_host().then(|| self.erased())
    }

    /// The same memory, wherever it lies, as a view that ends with the borrow.
    pub fn erased(&mut self) -> ViewMut<'_> {
        ViewMut {
            ptr: self.ptr,
            len: self.len,
            dtype: self.dtype,
            space: self.space,
            _borrow: PhantomData,
        }
    }

    /// What was put in, or `None` where the type is another one.
    pub fn into_inner<B: StableBuf>(self) -> Option<B> {
        let mut buf = self.owner.downcast::<B>().ok().map(|b| *b)?;
        if let Some(event) = self.ready {
            buf.set_ready(*event);
        }
        Some(buf)
    }
}

/// Borrowed, erased: what a blocking operation takes.
#[derive(Debug)]
pub struct ViewMut<'a> {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    space: Space,
    _borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for a `&mut [T]` with `T: Element`, and elements are `Send`.
unsafe impl Send for ViewMut<'_> {}

impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    fn from(s: &'a mut [T]) -> Self {
        let len = s.len();
        ViewMut {
            ptr: slice_ptr(s).cast(),
            len,
            dtype: T::DTYPE,
            space: Space::Host,
            _borrow: PhantomData,
        }
    }
}

impl<'a> ViewMut<'a> {
    /// A buffer, wherever it lies.
    pub fn of<B: StableBuf>(buf: &'a mut B) -> ViewMut<'a> {
        let (ptr, len) = buf.parts();
        ViewMut {
            ptr: ptr.cast(),
            len,
            dtype: B::Elem::DTYPE,
            space: buf.space(),
            _borrow: PhantomData,
        }
    }

    /// Where it lies.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements, where they are host memory of type `T`.
    pub fn typed<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.dtype || !self.space.is_host() {
            return None;
        }
        // SAFETY: host memory, made from a `&mut [T]` or a `StableBuf` of this type and length whose borrow `'a` outlives the borrow of `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len) })
    }

    /// The bytes; `None` for device memory.
    pub fn bytes(&mut self) -> Option<&mut [u8]> {
        if !self.space.is_host() {
            return None;
        }
        let bytes = self.len * self.dtype.size();
        // SAFETY: host memory; elements have no padding and every bit pattern is a value, so their memory may be seen as bytes; the borrow is that of `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), bytes) })
    }

    /// Address, for an engine that works on it until the call it was lent for returns.
    pub fn as_ptr(&mut self) -> NonNull<u8> {
        self.ptr
    }
}

/// Borrowed for reading, erased: what an operation out of place takes its contribution from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    space: Space,
    _borrow: PhantomData<&'a [u8]>,
}

// SAFETY: it stands for a `&[T]` with `T: Element`, and elements are `Sync`.
unsafe impl Send for View<'_> {}

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    fn from(s: &'a [T]) -> Self {
        View {
            // A reference is never null, so this is its own address.
            ptr: NonNull::from(s).cast(),
            len: s.len(),
            dtype: T::DTYPE,
            space: Space::Host,
            _borrow: PhantomData,
        }
    }
}

impl<'a> From<ViewMut<'a>> for View<'a> {
    fn from(v: ViewMut<'a>) -> Self {
        View {
            ptr: v.ptr,
            len: v.len,
            dtype: v.dtype,
            space: v.space,
            _borrow: PhantomData,
        }
    }
}

impl View<'_> {
    /// Where it lies.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes; `None` for device memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        if !self.space.is_host() {
            return None;
        }
        let bytes = self.len * self.dtype.size();
        // SAFETY: host memory; elements have no padding, so all their bytes are initialised; made from memory of this length whose borrow outlives that of `self`.
        Some(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), bytes) })
    }

    /// Address, for an engine that reads there until the call it was lent for returns.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }
}

/// The memory of a blocking operation: what it writes, and, out of place, what it reads.
#[derive(Debug)]
pub struct Borrowed<'a> {
    /// The contribution, never modified; `None`: in place.
    pub input: Option<View<'a>>,
    /// What is written; in place also what is read.
    pub io: ViewMut<'a>,
}

impl<'a> From<ViewMut<'a>> for Borrowed<'a> {
    fn from(io: ViewMut<'a>) -> Self {
        Borrowed { input: None, io }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for Borrowed<'a> {
    fn from(io: &'a mut [T]) -> Self {
        ViewMut::from(io).into()
    }
}

/// The memory of an asynchronous operation: what it writes, and, out of place, what it reads.
#[derive(Debug)]
pub struct Owned {
    /// The contribution, never modified; `None`: in place.
    pub input: Option<Region>,
    /// What is written; in place also what is read.
    pub io: Region,
}

impl From<Region> for Owned {
    fn from(io: Region) -> Self {
        Owned { input: None, io }
    }
}

/// Bytes that a transport may read where they are: in the same address space, or in memory that the peer has mapped.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker of a loan has promised that the bytes stay valid and unchanged for as long as it is out, whichever thread reads them.
unsafe impl Send for Loan {}
// SAFETY: as above; reading from several threads is sound because nobody writes.
unsafe impl Sync for Loan {}

impl Loan {
    /// Lends `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes stay valid, initialised and unwritten until the transfer that carries the loan is reported done, or `cancel` of it has returned.
    pub unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Loan { ptr, len }
    }

    /// Where they are.
    pub fn start(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was lent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    ///
    /// # Safety
    /// The loan is still out: the transfer has neither been reported done nor has its cancellation returned.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: valid and unwritten while the loan is out, by the promise made in `new` and the caller's that it still is.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

/// The elements as bytes.
pub fn bytes_of<T: Element>(s: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, so all their bytes are initialised; length and borrow are those of `s`.
    unsafe { std::slice::from_raw_parts(s.as_ptr().cast(), size_of_val(s)) }
}

/// The elements as bytes, for writing.
pub fn bytes_of_mut<T: Element>(s: &mut [T]) -> &mut [u8] {
    // SAFETY: elements have no padding and accept every bit pattern; length and borrow are those of `s`.
    unsafe { std::slice::from_raw_parts_mut(s.as_mut_ptr().cast(), size_of_val(s)) }
}

/// `n` elements whose bytes are all 0: a value of every element type. For lengths that stand for memory that is there.
pub fn zeroed<T: Element>(n: usize) -> Vec<T> {
    // SAFETY: every bit pattern is a value, the one of zeros too.
    let zero: T = unsafe { std::mem::zeroed() };
    vec![zero; n]
}

/// As [`zeroed`], for lengths that may be anything; `None` where there is no such memory. Pages are the system's until they are written.
pub fn try_zeroed<T: Element>(n: u64) -> Option<Vec<T>> {
    let n = usize::try_from(n).ok()?;
    let layout = std::alloc::Layout::array::<T>(n).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout has a size.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    // SAFETY: allocated just now by the global allocator with the layout of `n` elements, and every one of them is a value.
    Some(unsafe { Vec::from_raw_parts(start.as_ptr().cast(), n, n) })
}

/// Bytes as elements, where address and length fit the type.
pub fn elements_of<T: Element>(b: &[u8]) -> Option<&[T]> {
    let size = T::DTYPE.size();
    if !b.len().is_multiple_of(size) || b.as_ptr().align_offset(align_of::<T>()) != 0 {
        return None;
    }
    // SAFETY: aligned and a whole number of elements, as just checked; every bit pattern is a value; the borrow is that of `b`.
    Some(unsafe { std::slice::from_raw_parts(b.as_ptr().cast(), b.len() / size) })
}

/// Bytes as elements, for writing, where address and length fit the type.
pub fn elements_of_mut<T: Element>(b: &mut [u8]) -> Option<&mut [T]> {
    let size = T::DTYPE.size();
    if !b.len().is_multiple_of(size) || b.as_ptr().align_offset(align_of::<T>()) != 0 {
        return None;
    }
    // SAFETY: aligned and a whole number of elements, as just checked; every bit pattern is a value; the borrow is that of `b`.
    Some(unsafe { std::slice::from_raw_parts_mut(b.as_mut_ptr().cast(), b.len() / size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_gives_back_what_it_took() {
        let mut r = Region::new(vec![1.0f32, 2.0]);
        assert!(r.typed::<f64>().is_none());
        r.typed::<f32>().unwrap()[1] = 5.0;
        assert_eq!(r.into_inner::<Vec<f32>>().unwrap(), [1.0, 5.0]);
    }

    #[test]
    fn regions_of_zeros_are_vectors_of_their_type() {
        for dtype in DType::ALL {
            let r = Region::zeroed(dtype, 5).unwrap();
            assert_eq!((r.dtype(), r.len()), (dtype, 5));
            assert!(Region::zeroed(dtype, u64::MAX).is_none());
        }
        let r = Region::zeroed(DType::F32, 2).unwrap();
        assert_eq!(r.into_inner::<Vec<f32>>().unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn a_view_shows_one_type_only() {
        let mut x = [1i32, 2, 3];
        let mut v = ViewMut::from(&mut x[..]);
        assert!(v.typed::<f32>().is_none());
        v.typed::<i32>().unwrap()[0] = 7;
        assert_eq!(x[0], 7);
    }

    /// Three elements of a device.
    struct OnDevice(Option<Arc<dyn Event>>);

    // SAFETY: nobody dereferences an address of a device, and there is none behind this one.
    unsafe impl StableBuf for OnDevice {
        type Elem = f32;
        fn parts(&mut self) -> (NonNull<f32>, usize) {
            (NonNull::dangling(), 3)
        }
        fn space(&self) -> Space {
            Space::Cuda { ordinal: 1 }
        }
        fn ready(&self) -> Option<Arc<dyn Event>> {
            self.0.clone()
        }
        fn set_ready(&mut self, event: Arc<dyn Event>) {
            self.0 = Some(event);
        }
    }

    #[derive(Debug)]
    struct Never;

    impl Event for Never {
        fn space(&self) -> Space {
            Space::Cuda { ordinal: 1 }
        }
        fn is_done(&self) -> bool {
            false
        }
        fn wait(&self, _limit: std::time::Duration) -> bool {
            false
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn device_memory_is_never_shown_to_the_host() {
        let mut x = OnDevice(None);
        let mut view = ViewMut::of(&mut x);
        assert!(view.typed::<f32>().is_none() && view.bytes().is_none());
        assert!(View::from(view).bytes().is_none());
        let mut r = Region::new(x);
        assert!(r.typed::<f32>().is_none() && r.view().is_none() && r.ready().is_none());
        assert_eq!((r.erased().len(), r.erased().space()), (3, r.space()));
        // What it must wait for goes in and comes out with it.
        r.set_ready(Arc::new(Never));
        let x = r.into_inner::<OnDevice>().unwrap();
        assert!(x.0.is_some() && Region::new(x).ready().is_some());
    }

    #[test]
    fn misaligned_bytes_are_no_elements() {
        let b = [0u8; 17];
        let at = b.as_ptr().align_offset(8);
        assert!(elements_of::<f64>(&b[at..at + 8]).is_some());
        assert!(elements_of::<f64>(&b[at + 1..at + 9]).is_none());
        assert!(elements_of::<f32>(&b[at..at + 7]).is_none());
    }
}
