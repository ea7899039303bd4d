//! UCX's `ucp` layer, as much of it as active messages need: loaded at run time, wrapped in handles that own what they stand for.
//!
//! # Safety
//! The declarations are those of `ucp/api/ucp.h` of version 1.13; the library promises that later ones only append to structures, whose used fields are named in a mask.
//! A [`Worker`] is driven by whoever has it mutably, on any thread (`UCS_THREAD_MODE_SERIALIZED`); callbacks happen within its `progress` and touch its inbox alone, which does not move and outlives the worker.
//! A packet's bytes belong to the worker from `send` until UCX has completed their request.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{null, null_mut},
    sync::{Arc, OnceLock},
};

/// `ucs_status_t` is a packed enumeration.
type Status = i8;
const BUSY: Status = -15;
const IN_PROGRESS: Status = 1;
/// `UCS_ERR_LAST`: pointers from here on are negative statuses.
const ERR_LAST: usize = (-100isize) as usize;
/// The one active message that is used.
const ID: c_uint = 0;

#[repr(C)]
struct Params {
    field_mask: u64,
    features: u64,
    request: [u64; 4],
    mt_workers_shared: c_int,
    rest: [u64; 3],
}

#[repr(C)]
struct WorkerParams {
    field_mask: u64,
    thread_mode: c_int,
    rest: [u64; 23],
}

#[repr(C)]
struct EpParams {
    field_mask: u64,
    address: *const c_void,
    err_mode: c_int,
    err_cb: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, Status)>,
    err_arg: *mut c_void,
    rest: [u64; 8],
}

type OnMessage = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const c_void,
) -> Status;

#[repr(C)]
struct AmHandler {
    field_mask: u64,
    id: c_uint,
    flags: u32,
    cb: OnMessage,
    arg: *mut c_void,
}

#[repr(C)]
struct RequestParam {
    op_attr_mask: u32,
    flags: u32,
    rest: [u64; 8],
}

macro_rules! api {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of the library.
        struct Api {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Api, String> {
                // SAFETY: libucp's initialisers are those of an ordinary library.
                let library = unsafe { Library::open(Some("libucp.so.0"), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|e| e.to_string())?;
                Ok(Api {
                    $($name: {
                        // SAFETY: the type is that of the declaration in ucp.h.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|e| e.to_string())?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

api! {
    ucp_config_read: fn(*const c_char, *const c_char, *mut *mut c_void) -> Status;
    ucp_config_modify: fn(*mut c_void, *const c_char, *const c_char) -> Status;
    ucp_config_release: fn(*mut c_void);
    ucp_init_version: fn(c_uint, c_uint, *const Params, *const c_void, *mut *mut c_void) -> Status;
    ucp_cleanup: fn(*mut c_void);
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_worker_create: fn(*mut c_void, *const WorkerParams, *mut *mut c_void) -> Status;
    ucp_worker_destroy: fn(*mut c_void);
    ucp_worker_get_address: fn(*mut c_void, *mut *mut c_void, *mut usize) -> Status;
    ucp_worker_release_address: fn(*mut c_void, *mut c_void);
    ucp_worker_set_am_recv_handler: fn(*mut c_void, *const AmHandler) -> Status;
    ucp_worker_progress: fn(*mut c_void) -> c_uint;
    ucp_worker_get_efd: fn(*mut c_void, *mut c_int) -> Status;
    ucp_worker_arm: fn(*mut c_void) -> Status;
    ucp_ep_create: fn(*mut c_void, *const EpParams, *mut *mut c_void) -> Status;
    ucp_ep_close_nbx: fn(*mut c_void, *const RequestParam) -> *mut c_void;
    ucp_ep_flush_nbx: fn(*mut c_void, *const RequestParam) -> *mut c_void;
    ucp_am_send_nbx: fn(*mut c_void, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam) -> *mut c_void;
    ucp_request_check_status: fn(*mut c_void) -> Status;
    ucp_request_free: fn(*mut c_void);
}

fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
}

fn ok(what: &str, status: Status) -> Result<(), String> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{what}: ucs_status {status}"))
    }
}

fn request(mask: u32, flags: u32) -> RequestParam {
    RequestParam {
        op_attr_mask: mask,
        flags,
        rest: [0; 8],
    }
}

/// The library's own state in this process.
pub struct Context {
    api: &'static Api,
    ptr: *mut c_void,
}

// SAFETY: UCX allows a context that is made for shared workers on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Loads the library; `tls` is its own list of transports, as in `UCX_TLS`.
    ///
    /// # Errors
    /// The library is not there, or does not want to.
    pub fn new(tls: Option<&str>) -> Result<Arc<Context>, String> {
        let api = api()?;
        let mut config = null_mut();
        // SAFETY: null stands for no prefix and no file; the place for the result is ours.
        ok("ucp_config_read", unsafe {
            (api.ucp_config_read)(null(), null(), &mut config)
        })?;
        if let Some(tls) = tls {
            let tls = CString::new(tls).map_err(|e| e.to_string())?;
            // SAFETY: a configuration that was just read, and strings that outlive the call.
            let status = unsafe { (api.ucp_config_modify)(config, c"TLS".as_ptr(), tls.as_ptr()) };
            ok("ucp_config_modify", status)?;
        }
        let params = Params {
            // Features, shared workers.
            field_mask: 1 | 1 << 5,
            // Wake-up, active messages.
            features: 1 << 4 | 1 << 6,
            request: [0; 4],
            mt_workers_shared: 1,
            rest: [0; 3],
        };
        let mut ptr = null_mut();
        // SAFETY: the fields that the mask names are set; the configuration is released once, after its only use.
        let status = unsafe {
            let status = (api.ucp_init_version)(1, 13, &params, config, &mut ptr);
            (api.ucp_config_release)(config);
            status
        };
        ok("ucp_init", status)?;
        Ok(Arc::new(Context { api, ptr }))
    }

    /// The library's version.
    pub fn version(&self) -> String {
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: three places of ours.
        unsafe { (self.api.ucp_get_version)(&mut major, &mut minor, &mut release) };
        format!("{major}.{minor}.{release}")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every worker holds the context alive, so there is none.
        unsafe { (self.api.ucp_cleanup)(self.ptr) };
    }
}

/// What callbacks have left.
#[derive(Default)]
struct Inbox(Mutex<VecDeque<Came>>);

/// What has come to a worker.
pub enum Came {
    /// An active message.
    Message(Vec<u8>),
    /// The endpoint with this number has failed, with this status.
    Failed(usize, i32),
}

/// What an endpoint's error handler is given.
struct Handler {
    inbox: *const Inbox,
    number: usize,
}

// SAFETY: the inbox is `Sync`, and outlives the handlers of its worker.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

unsafe extern "C" fn on_message(
    arg: *mut c_void,
    _header: *const c_void,
    _header_len: usize,
    data: *mut c_void,
    len: usize,
    _param: *const c_void,
) -> Status {
    // SAFETY: the handler was set with the inbox, which outlives the worker; `data` are `len` bytes, whole because every message is sent eagerly, and valid during the call.
    let (inbox, bytes) = unsafe {
        let bytes = if len == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(data.cast::<u8>(), len)
        };
        (&*arg.cast::<Inbox>(), bytes)
    };
    inbox.0.lock().push_back(Came::Message(bytes.to_vec()));
    0
}

unsafe extern "C" fn on_failure(arg: *mut c_void, _ep: *mut c_void, status: Status) {
    // SAFETY: the endpoint was made with its handler, which outlives the worker, as the inbox does.
    let (handler, inbox) = unsafe {
        let handler = &*arg.cast::<Handler>();
        (handler, &*handler.inbox)
    };
    let failed = Came::Failed(handler.number, status.into());
    inbox.0.lock().push_back(failed);
}

/// One rank's worker with an endpoint to every other.
pub struct Worker {
    context: Arc<Context>,
    ptr: *mut c_void,
    endpoints: Vec<Option<*mut c_void>>,
    /// Never moved: their addresses are given away.
    handlers: Vec<Arc<Handler>>,
    /// As above.
    inbox: Arc<Inbox>,
    /// Requests, and the bytes that they send.
    sending: Vec<(*mut c_void, Box<[u8]>)>,
    flushing: Option<Vec<*mut c_void>>,
}

// SAFETY: serialised access is what it was made for, and all of it goes through `&mut self`.
unsafe impl Send for Worker {}

impl Worker {
    /// A worker without endpoints, and its address.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(context: &Arc<Context>) -> Result<(Worker, Vec<u8>), String> {
        let api = context.api;
        let params = WorkerParams {
            field_mask: 1,
            thread_mode: 1,
            rest: [0; 23],
        };
        let mut ptr = null_mut();
        // SAFETY: the field that the mask names is set.
        ok("ucp_worker_create", unsafe {
            (api.ucp_worker_create)(context.ptr, &params, &mut ptr)
        })?;
        let worker = Worker {
            context: Arc::clone(context),
            ptr,
            endpoints: vec![],
            handlers: vec![],
            inbox: Arc::default(),
            sending: vec![],
            flushing: None,
        };
        let handler = AmHandler {
            // Number, flags, callback, argument.
            field_mask: 15,
            id: ID,
            // UCP_AM_FLAG_WHOLE_MSG
            flags: 1,
            cb: on_message,
            arg: Arc::as_ptr(&worker.inbox).cast_mut().cast(),
        };
        // SAFETY: callback and inbox outlive the worker.
        ok("ucp_worker_set_am_recv_handler", unsafe {
            (api.ucp_worker_set_am_recv_handler)(ptr, &handler)
        })?;
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: the address is copied before it is released.
        let bytes = unsafe {
            let status = (api.ucp_worker_get_address)(ptr, &mut address, &mut len);
            ok("ucp_worker_get_address", status)?;
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), len).to_vec();
            (api.ucp_worker_release_address)(ptr, address);
            bytes
        };
        Ok((worker, bytes))
    }

    /// Makes endpoints to all addresses but one's own, numbered as they are.
    ///
    /// # Errors
    /// What the library says: for example that no transport of its reaches an address and notices failures.
    pub fn connect(
        &mut self,
        addresses: &[Vec<u8>],
        me: usize,
        notice_failures: bool,
    ) -> Result<(), String> {
        for (number, address) in addresses.iter().enumerate() {
            if number == me {
                self.endpoints.push(None);
                continue;
            }
            let handler = Arc::new(Handler {
                inbox: Arc::as_ptr(&self.inbox),
                number,
            });
            let params = EpParams {
                // Address, error mode, error handler.
                field_mask: 7,
                address: address.as_ptr().cast(),
                err_mode: notice_failures.into(),
                err_cb: Some(on_failure),
                err_arg: Arc::as_ptr(&handler).cast_mut().cast(),
                rest: [0; 8],
            };
            self.handlers.push(handler);
            let mut ep = null_mut();
            // SAFETY: an address as another worker gave it, and a handler that outlives the worker.
            ok("ucp_ep_create", unsafe {
                (self.context.api.ucp_ep_create)(self.ptr, &params, &mut ep)
            })?;
            self.endpoints.push(Some(ep));
        }
        Ok(())
    }

    /// Sends a message; false where too many are on their way.
    pub fn send(&mut self, to: usize, bytes: Box<[u8]>) -> bool {
        if self.sending.len() >= 64 {
            self.reap();
            if self.sending.len() >= 64 {
                return false;
            }
        }
        let Some(Some(ep)) = self.endpoints.get(to) else {
            return true;
        };
        // UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_EAGER
        let param = request(1 << 4, 1 << 1);
        let (data, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: an open endpoint; the bytes stay where they are until the request is complete, see `reap` and `drop`.
        let request =
            unsafe { (self.context.api.ucp_am_send_nbx)(*ep, ID, null(), 0, data, len, &param) };
        if is_request(request) {
            self.sending.push((request, bytes));
        } else if !request.is_null() {
            let failed = Came::Failed(to, request.addr() as i32);
            self.inbox.0.lock().push_back(failed);
        }
        true
    }

    /// Lets go of what has been sent.
    fn reap(&mut self) {
        let api = self.context.api;
        self.sending.retain(|(request, _)| !finished(api, *request));
    }

    /// What has come, after some progress where nothing had.
    pub fn poll(&mut self) -> Option<Came> {
        let came = self.inbox.0.lock().pop_front();
        if came.is_some() {
            return came;
        }
        // SAFETY: the worker is alive, and this is its only user now.
        unsafe { (self.context.api.ucp_worker_progress)(self.ptr) };
        self.reap();
        self.inbox.0.lock().pop_front()
    }

    /// Whether a sleeper on the descriptor will be woken by what comes next; false where something has come already.
    pub fn arm(&mut self) -> bool {
        // SAFETY: as in `poll`.
        let status = unsafe { (self.context.api.ucp_worker_arm)(self.ptr) };
        debug_assert!(status == 0 || status == BUSY, "ucp_worker_arm: {status}");
        status == 0 && self.inbox.0.lock().is_empty()
    }

    /// A copy of the descriptor that becomes readable.
    ///
    /// # Errors
    /// The library has none.
    pub fn fd(&self) -> Result<OwnedFd, String> {
        let mut fd = -1;
        // SAFETY: the place for the descriptor is ours; it is the worker's, and open while it is copied.
        unsafe {
            ok(
                "ucp_worker_get_efd",
                (self.context.api.ucp_worker_get_efd)(self.ptr, &mut fd),
            )?;
            BorrowedFd::borrow_raw(fd)
                .try_clone_to_owned()
                .map_err(|e| e.to_string())
        }
    }

    /// Whether all that was sent has been taken over by the peers' side, or never will be.
    pub fn is_flushed(&mut self) -> bool {
        // SAFETY: as in `poll`.
        unsafe { (self.context.api.ucp_worker_progress)(self.ptr) };
        self.reap();
        if !self.sending.is_empty() {
            return false;
        }
        let api = self.context.api;
        let flushing = self.flushing.get_or_insert_with(|| {
            let param = request(0, 0);
            let open = self.endpoints.iter().flatten();
            // SAFETY: open endpoints.
            let all = open.map(|ep| unsafe { (api.ucp_ep_flush_nbx)(*ep, &param) });
            all.filter(|r| is_request(*r)).collect()
        });
        flushing.retain(|request| !finished(api, *request));
        flushing.is_empty()
    }
}

fn is_request(ptr: *mut c_void) -> bool {
    !ptr.is_null() && ptr.addr() < ERR_LAST
}

/// Whether a request has come to its end; then it is freed.
fn finished(api: &Api, request: *mut c_void) -> bool {
    // SAFETY: a request that has not been freed: whoever hears `true` forgets it.
    unsafe {
        if (api.ucp_request_check_status)(request) == IN_PROGRESS {
            return false;
        }
        (api.ucp_request_free)(request);
    }
    true
}

impl Drop for Worker {
    fn drop(&mut self) {
        let api = self.context.api;
        // UCP_OP_ATTR_FIELD_FLAGS, UCP_EP_CLOSE_FLAG_FORCE: what is under way is given up.
        let param = request(1 << 4, 1);
        let open = self.endpoints.iter().flatten();
        // SAFETY: each endpoint is closed once.
        let closing = open.map(|ep| unsafe { (api.ucp_ep_close_nbx)(*ep, &param) });
        let mut closing: Vec<_> = closing.filter(|r| is_request(*r)).collect();
        closing.extend(self.flushing.take().into_iter().flatten());
        for _ in 0..100_000 {
            closing.retain(|request| !finished(api, *request));
            self.reap();
            if closing.is_empty() && self.sending.is_empty() {
                break;
            }
            // SAFETY: as in `poll`.
            unsafe { (api.ucp_worker_progress)(self.ptr) };
        }
        for (_, bytes) in self.sending.drain(..) {
            // UCX may still read them.
            Box::leak(bytes);
        }
        // SAFETY: the last use of the worker; inbox and handlers are dropped after it.
        unsafe { (api.ucp_worker_destroy)(self.ptr) };
    }
}
