// SPDX-License-Identifier: GPL-2.0

//! Models of [`UnplugGate`].

use crate::{check, gate::UnplugGate, prelude::*, sync::Arc};
use loom::{
    cell::UnsafeCell,
    thread::{self, JoinHandle},
};

/// A device that is there until its gate has closed.
#[pin_data]
struct Device {
    #[pin]
    gate: UnplugGate,
    registers: [UnsafeCell<()>; 2],
}

// SAFETY: Registers are accessed behind the gate, which is what the models show.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

impl Device {
    fn new() -> Arc<Self> {
        let device = pin_init!(Self {
            gate <- UnplugGate::new(),
            registers: Default::default(),
        });
        Arc::pin_init(device, GFP_KERNEL_ACCOUNT).unwrap()
    }

    /// Writes a register, if the device is still there. Whether it was.
    fn write(&self, register: usize) -> bool {
        let Ok(_guard) = self.gate.enter() else {
            return false;
        };
        self.registers[register].with_mut(|_| ());
        true
    }

    fn remove(&self) {
        self.gate.close();
        for register in &self.registers {
            register.with_mut(|_| ());
        }
    }
}

fn spawn<R: 'static>(
    device: &Arc<Device>,
    call: impl FnOnce(&Device) -> R + 'static,
) -> JoinHandle<R> {
    let device = device.clone();
    thread::spawn(move || call(&device))
}

/// Two calls of either order, the last of which completes for both.
#[test]
fn removal_comes_after_what_all_guards_did() {
    check(|| {
        let device = Device::new();
        let calls = [0, 1].map(|n| spawn(&device, move |device| device.write(n)));
        device.remove();
        calls.map(|call| call.join().unwrap());
    });
}

/// The last reference to the device may be dropped by any of them, as soon as it is done.
#[test]
fn a_late_caller_completes_what_is_there_still() {
    check(|| {
        let device = Device::new();
        let late = spawn(&device, |device| device.write(0));
        let removal = spawn(&device, Device::remove);
        drop(device);
        late.join().unwrap();
        removal.join().unwrap();
    });
}

/// After the gate has closed nobody is let in, and who saw it closing neither.
#[test]
fn nobody_enters_a_closed_gate() {
    check(|| {
        let device = Device::new();
        let call = spawn(&device, |device| {
            let closed = device.gate.is_closed();
            let entered = device.write(0);
            assert!(!(closed && entered));
        });
        device.gate.close();
        assert!(device.gate.is_closed() && !device.write(1));
        call.join().unwrap();
    });
}
