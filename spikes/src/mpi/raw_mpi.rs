//! MPI's point-to-point messages, as much of them as a packet link needs: Open MPI's library, loaded at run time.
//!
//! # Safety
//! MPI has an interface but, before its version 5, no common binary form: in Open MPI handles are pointers and the predefined ones are symbols; in MPICH they are integers. Only Open MPI 4 and 5 (`libmpi.so.40`) are known here, and the version is asked before anything else is.
//! All calls are made under one lock of the process, which is what `MPI_THREAD_SERIALIZED` asks for.
//! A packet's bytes belong to the list of requests until MPI has completed theirs, and are leaked where it never does.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use parking_lot::Mutex;
use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
    sync::OnceLock,
};

type Handle = *mut c_void;
const SERIALIZED: c_int = 2;

macro_rules! api {
    ($($name:ident: fn($($arg:ty),*);)*) => {
        #[allow(non_snake_case, reason = "MPI's own names")]
        struct Api {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            world: Handle,
            own: Handle,
            byte: Handle,
            errors_return: Handle,
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Api, String> {
                // Global: its plug-ins look for the library's symbols.
                // SAFETY: libmpi's initialisers are those of an ordinary library.
                let library = unsafe { Library::open(Some("libmpi.so.40"), RTLD_NOW | RTLD_GLOBAL) }
                    .map_err(|e| e.to_string())?;
                let object = |name: &[u8]| -> Result<Handle, String> {
                    // SAFETY: only the symbol's address is taken: it is the handle.
                    let symbol = unsafe { library.get::<*mut c_void>(name) };
                    Ok(symbol.map_err(|e| e.to_string())?.into_raw())
                };
                Ok(Api {
                    $($name: {
                        // SAFETY: the type is that of the declaration in mpi.h.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|e| e.to_string())?
                    },)*
                    world: object(b"ompi_mpi_comm_world\0")?,
                    own: object(b"ompi_mpi_comm_self\0")?,
                    byte: object(b"ompi_mpi_byte\0")?,
                    errors_return: object(b"ompi_mpi_errors_return\0")?,
                    _library: library,
                })
            }
        }
    };
}

api! {
    MPI_Get_library_version: fn(*mut c_char, *mut c_int);
    MPI_Init_thread: fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    MPI_Finalize: fn();
    MPI_Comm_dup: fn(Handle, *mut Handle);
    MPI_Comm_set_errhandler: fn(Handle, Handle);
    MPI_Comm_rank: fn(Handle, *mut c_int);
    MPI_Comm_size: fn(Handle, *mut c_int);
    MPI_Isend: fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Test: fn(*mut Handle, *mut c_int, *mut c_void);
    MPI_Improbe: fn(c_int, c_int, Handle, *mut c_int, *mut Handle, *mut Status);
    MPI_Get_count: fn(*const Status, Handle, *mut c_int);
    MPI_Mrecv: fn(*mut c_void, c_int, Handle, *mut Handle, *mut c_void);
}

/// Larger than any `MPI_Status`.
#[repr(C, align(8))]
struct Status([u64; 8]);

/// MPI, initialised. Its functions are called under the lock.
pub struct Mpi {
    api: Mutex<Api>,
    version: String,
}

// SAFETY: handles are numbers or addresses of MPI's own; all calls go through the lock.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

/// A communicator of MPI's, or a null handle.
#[derive(Clone, Copy)]
pub struct Comm(Handle);

// SAFETY: a name of something in MPI, which is only used under MPI's lock.
unsafe impl Send for Comm {}

/// A send that may still be under way, and its bytes.
pub struct Sending {
    request: Handle,
    bytes: Option<Box<[u8]>>,
}

// SAFETY: as for `Comm`.
unsafe impl Send for Sending {}

fn ok(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 {
        Ok(())
    } else {
        Err(format!("{what}: error {code}"))
    }
}

impl Mpi {
    /// Loads and initialises it, once in a process.
    ///
    /// # Errors
    /// There is no Open MPI, it does not want to, or it cannot do with one thread at a time.
    pub fn get() -> Result<&'static Mpi, String> {
        static MPI: OnceLock<Result<Mpi, String>> = OnceLock::new();
        MPI.get_or_init(Mpi::init).as_ref().map_err(Clone::clone)
    }

    fn init() -> Result<Mpi, String> {
        let api = Api::load()?;
        let (mut text, mut len) = ([0u8; 8192], 0);
        // SAFETY: room for MPI_MAX_LIBRARY_VERSION_STRING, which is allowed before the initialisation.
        let code = unsafe { (api.MPI_Get_library_version)(text.as_mut_ptr().cast(), &mut len) };
        ok("MPI_Get_library_version", code)?;
        let version = String::from_utf8_lossy(&text[..len.clamp(0, 8192) as usize]).into_owned();
        let version = version.split(',').next().unwrap_or_default().to_owned();
        if !version.starts_with("Open MPI v4.") && !version.starts_with("Open MPI v5.") {
            return Err(format!("libmpi.so.40 is {version}, not Open MPI 4 or 5"));
        }
        let mut got = 0;
        // SAFETY: null arguments are allowed; once in a process, as `get` sees to.
        let code = unsafe { (api.MPI_Init_thread)(null_mut(), null_mut(), SERIALIZED, &mut got) };
        ok("MPI_Init_thread", code)?;
        if got < SERIALIZED {
            return Err(format!(
                "this MPI gives thread level {got}, {SERIALIZED} is needed"
            ));
        }
        Ok(Mpi {
            api: Mutex::new(api),
            version,
        })
    }

    /// Whose, and which.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A communicator of our own: of all processes, with this one's number and their count, or of this process alone. It returns errors. It is never freed.
    ///
    /// # Errors
    /// What MPI says.
    pub fn comm(&self, of_all: bool) -> Result<(Comm, u32, u32), String> {
        let api = self.api.lock();
        let (mut comm, mut rank, mut size) = (null_mut(), 0, 0);
        let parent = if of_all { api.world } else { api.own };
        // SAFETY: predefined handles, and places of ours for results.
        unsafe {
            ok("MPI_Comm_dup", (api.MPI_Comm_dup)(parent, &mut comm))?;
            ok(
                "MPI_Comm_set_errhandler",
                (api.MPI_Comm_set_errhandler)(comm, api.errors_return),
            )?;
            ok("MPI_Comm_rank", (api.MPI_Comm_rank)(comm, &mut rank))?;
            ok("MPI_Comm_size", (api.MPI_Comm_size)(comm, &mut size))?;
        }
        Ok((Comm(comm), rank as u32, size as u32))
    }

    /// Begins a send.
    ///
    /// # Errors
    /// What MPI says; nothing was sent.
    pub fn send(&self, comm: Comm, to: u32, tag: u32, bytes: Box<[u8]>) -> Result<Sending, String> {
        let api = self.api.lock();
        let mut request = null_mut();
        let (data, len) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the bytes stay where they are until the request is complete: `Sending` owns them.
        let code = unsafe {
            (api.MPI_Isend)(
                data,
                len,
                api.byte,
                to as c_int,
                tag as c_int,
                comm.0,
                &mut request,
            )
        };
        ok("MPI_Isend", code)?;
        Ok(Sending {
            request,
            bytes: Some(bytes),
        })
    }

    /// Whether a send is over, as far as its sender is concerned.
    pub fn is_sent(&self, sending: &mut Sending) -> bool {
        if sending.bytes.is_none() {
            return true;
        }
        let api = self.api.lock();
        let mut flag = 0;
        // SAFETY: an active request; a null status is "ignored".
        let code = unsafe { (api.MPI_Test)(&mut sending.request, &mut flag, null_mut()) };
        // After an error nobody reads the bytes any more either.
        if flag != 0 || code != 0 {
            sending.bytes = None;
        }
        sending.bytes.is_none()
    }

    /// The next message with this tag from there, if one has come.
    ///
    /// # Errors
    /// What MPI says.
    pub fn receive(&self, comm: Comm, from: u32, tag: u32) -> Result<Option<Vec<u8>>, String> {
        let api = self.api.lock();
        let (mut flag, mut message, mut status, mut len) = (0, null_mut(), Status([0; 8]), 0);
        // SAFETY: places of ours for results; the matched message is received once, right away, into room of its own length.
        unsafe {
            let code = (api.MPI_Improbe)(
                from as c_int,
                tag as c_int,
                comm.0,
                &mut flag,
                &mut message,
                &mut status,
            );
            ok("MPI_Improbe", code)?;
            if flag == 0 {
                return Ok(None);
            }
            ok(
                "MPI_Get_count",
                (api.MPI_Get_count)(&status, api.byte, &mut len),
            )?;
            let mut bytes = vec![0u8; usize::try_from(len).unwrap_or(0)];
            let code = (api.MPI_Mrecv)(
                bytes.as_mut_ptr().cast(),
                len,
                api.byte,
                &mut message,
                null_mut(),
            );
            ok("MPI_Mrecv", code)?;
            Ok(Some(bytes))
        }
    }

    /// Ends it. Nothing may be called afterwards.
    ///
    /// # Errors
    /// What MPI says.
    pub fn finalize(&self) -> Result<(), String> {
        // SAFETY: once, at the program's end, by its promise.
        ok("MPI_Finalize", unsafe { (self.api.lock().MPI_Finalize)() })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            // MPI may still read them; MPI_Cancel of a send is not to be relied on.
            Box::leak(bytes);
        }
    }
}
