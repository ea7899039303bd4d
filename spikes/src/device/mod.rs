//! A communicator over the memory of devices: fake ones, with memory that the host cannot read and streams that run by themselves.
//!
//! A [`Device`] has memory reached by address from its own kernels only, and any number of [`Stream`]s, each a thread that does what was enqueued, in order.
//! [`world`] makes one [`DeviceComm`] per rank; it behaves as NCCL's would: starting an operation enqueues it on the communicator's own stream, behind what the buffer says it needs ([`StableBuf::ready`]); its kernel meets those of the other ranks.

mod comm;
mod raw_buffer;

pub use comm::{DeviceComm, world};
pub use raw_buffer::DeviceVec;

use gaggle_core::{
    Element, Event, Space, StableBuf,
    raw::{bytes_of, bytes_of_mut, zeroed},
};
use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Sender, channel},
    },
    task::Waker,
    thread,
    time::Duration,
};

/// The memory of a device, as its kernels see it: blocks of bytes by address.
pub type Memory = HashMap<usize, Vec<u8>>;

/// A device: memory of its own.
#[derive(Debug)]
pub struct Device {
    ordinal: u32,
    memory: Mutex<Memory>,
    next: AtomicUsize,
}

impl Device {
    /// With this number.
    pub fn new(ordinal: u32) -> Arc<Device> {
        Arc::new(Device {
            ordinal,
            memory: Mutex::default(),
            // No address of the host's is so small: whoever takes it for one is killed at once.
            next: AtomicUsize::new(64),
        })
    }

    /// Its space.
    pub fn space(&self) -> Space {
        Space::Cuda {
            ordinal: self.ordinal,
        }
    }

    fn alloc(&self, bytes: usize) -> usize {
        // Relaxed: addresses must differ, they order nothing.
        let at = self.next.fetch_add(64, Relaxed);
        self.memory.lock().insert(at, vec![0; bytes]);
        at
    }

    fn free(&self, at: usize) {
        self.memory.lock().remove(&at);
    }

    /// For kernels. What has been freed is empty.
    fn read(&self, at: usize) -> Vec<u8> {
        self.memory.lock().get(&at).cloned().unwrap_or_default()
    }

    /// For kernels.
    fn write(&self, at: usize, bytes: &[u8]) {
        if let Some(block) = self.memory.lock().get_mut(&at) {
            block.copy_from_slice(bytes);
        }
    }
}

type Kernel = Box<dyn FnOnce(&Device) + Send>;

/// Work of a device, in order, on a thread `spike-stream`. It ends once the last handle is gone and all is done.
#[derive(Clone)]
pub struct Stream {
    device: Arc<Device>,
    queue: Sender<Kernel>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.device.space())
    }
}

impl Stream {
    /// Of this device.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(device: &Arc<Device>) -> std::io::Result<Stream> {
        let (queue, work) = channel::<Kernel>();
        let on = Arc::clone(device);
        thread::Builder::new()
            .name("spike-stream".into())
            .spawn(move || work.into_iter().for_each(|kernel| kernel(&on)))?;
        Ok(Stream {
            device: Arc::clone(device),
            queue,
        })
    }

    /// Enqueues work, and returns at once. An event that comes after it.
    pub fn launch(&self, kernel: impl FnOnce(&Device) + Send + 'static) -> Arc<StreamEvent> {
        let event = Arc::new(StreamEvent::new(self.device.space()));
        let done = Arc::clone(&event);
        let both: Kernel = Box::new(move |device| {
            kernel(device);
            done.signal();
        });
        if self.queue.send(both).is_err() {
            // The thread panicked in an earlier kernel: nothing more is done, and nobody must wait for it.
            event.signal();
        }
        event
    }

    /// Holds back what is enqueued from now on until the event is done; the host goes on.
    pub fn wait_for(&self, event: Arc<dyn Event>) {
        self.launch(move |_| while !event.wait(Duration::from_secs(3600)) {});
    }

    /// A kernel of a user's: changes the elements, behind whatever the buffer waits for.
    pub fn map<T: Element>(
        &self,
        x: &mut DeviceVec<T>,
        mut f: impl FnMut(T) -> T + Send + 'static,
    ) {
        self.after(x);
        let at = x.addr();
        let event = self.launch(move |device| {
            let mut elements = vec_of::<T>(&device.read(at));
            elements.iter_mut().for_each(|x| *x = f(*x));
            device.write(at, bytes_of(&elements));
        });
        x.set_ready(event);
    }

    /// A new buffer with these elements, once the copy is done.
    pub fn upload<T: Element>(&self, from: &[T]) -> DeviceVec<T> {
        let mut x = DeviceVec::new(self, from.len());
        let (at, bytes) = (x.addr(), bytes_of(from).to_vec());
        let event = self.launch(move |device| device.write(at, &bytes));
        x.set_ready(event);
        x
    }

    /// The elements, copied to the host behind whatever the buffer waits for. Blocks.
    pub fn download<T: Element>(&self, x: &DeviceVec<T>) -> Vec<T> {
        self.after(x);
        let (at, (send, receive)) = (x.addr(), channel());
        self.launch(move |device| {
            // The receiver waits right below.
            let _ = send.send(device.read(at));
        });
        vec_of(&receive.recv().unwrap_or_default())
    }

    fn after<T: Element>(&self, x: &DeviceVec<T>) {
        if let Some(event) = x.ready() {
            self.wait_for(event);
        }
    }
}

fn vec_of<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut all = zeroed::<T>(bytes.len() / size_of::<T>());
    bytes_of_mut(&mut all).copy_from_slice(bytes);
    all
}

/// A point in a stream.
pub struct StreamEvent {
    space: Space,
    state: Mutex<(bool, Vec<Waker>)>,
    changed: Condvar,
}

impl fmt::Debug for StreamEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamEvent({}, done: {})", self.space, self.is_done())
    }
}

impl StreamEvent {
    fn new(space: Space) -> StreamEvent {
        StreamEvent {
            space,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn signal(&self) {
        let mut state = self.state.lock();
        state.0 = true;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether it is done; if not, the waker is called once it is.
    fn is_done_or(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if !state.0 {
            state.1.push(waker.clone());
        }
        state.0
    }
}

impl Event for StreamEvent {
    fn space(&self) -> Space {
        self.space
    }
    fn is_done(&self) -> bool {
        self.state.lock().0
    }
    fn wait(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |s| !s.0, limit);
        state.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
