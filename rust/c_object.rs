// SPDX-License-Identifier: GPL-2.0

//! C objects that are embedded in Rust values, C callbacks that find the values around them, and C
//! tables in static memory.

/// Declares a type for a C object that locks itself, with functions that call C functions: `new()`,
/// which initialises the object, and methods.
///
/// The declared type is `Send` and `Sync`, and private to the file, as are its functions. All of
/// them are safe. So the C functions must be callable on any CPU at any time once the object is
/// initialised, with any values of their other arguments. The file is responsible for a callback
/// that it passes to `new()`: the callback must fit the value that the object is embedded in.
macro_rules! c_object {
    (
        $(#[$doc:meta])*
        $name:ident($raw:ident) {
            new = $init:path, ($($init_argument:ident: $init_type:ty),*);
            $(fn $method:ident = $function:path, ($($argument:ident: $type:ty),*) $(-> $ret:ty)?;)*
        }
    ) => {
        $(#[$doc])*
        ///
        /// # Invariants
        ///
        /// `object` is initialised.
        #[pin_data]
        #[repr(transparent)]
        struct $name {
            #[pin]
            object: kernel::types::Opaque<bindings::$raw>,
        }

        // SAFETY: The C functions lock the object, and may be called on any CPU.
        unsafe impl Send for $name {}
        // SAFETY: `&self` allows calls of these functions only, which may run at the same time.
        unsafe impl Sync for $name {}

        impl $name {
            fn new($($init_argument: $init_type),*) -> impl PinInit<Self> {
                // INVARIANT: The C function initialises the object.
                pin_init!(Self {
                    object <- kernel::types::Opaque::ffi_init(move |object| {
                        // SAFETY: `object` may be written. The file that uses the macro justifies
                        // the other arguments.
                        unsafe { $init(object, $($init_argument),*) }
                    }),
                })
            }

            $(
                fn $method(&self, $($argument: $type),*) $(-> $ret)? {
                    // SAFETY: The object is initialised by the type invariant, and the function
                    // locks it. The other arguments may have any value.
                    unsafe { $function(self.object.get(), $($argument),*) }
                }
            )*
        }
    };
}
pub(crate) use c_object;

/// A Rust value that handles the callback of an embedded C object of type `C`.
pub(crate) trait Callback<C> {
    /// Offset of the C object in `Self`, in bytes.
    const OFFSET: usize;

    /// Handles the callback, in the context in which C calls it.
    fn called(&self);
}

/// Calls [`Callback::called`] of the value that contains `object`.
///
/// # Safety
///
/// `object` must be [`Callback::OFFSET`] bytes into a `T` that outlives the call.
pub(crate) unsafe extern "C" fn callback<T: Callback<C>, C>(object: *mut C) {
    // SAFETY: By the safety requirement this is a `T`, which is alive and, as C objects are
    // embedded in pinned values, has not moved. It is only used by shared reference.
    let value = unsafe { &*object.byte_sub(T::OFFSET).cast::<T>() };
    value.called();
}

/// A table of C in static memory, such as a `struct file_operations`.
///
/// # Invariants
///
/// Nobody writes the table, or what its pointers refer to.
#[derive(Clone, Copy)]
pub(crate) struct StaticTable<T: Copy>(pub(crate) T);

// SAFETY: By the type invariant the table is only read. A `Copy` type has no interior mutability.
unsafe impl<T: Copy> Sync for StaticTable<T> {}
