// SPDX-License-Identifier: GPL-2.0

//! Calls for the application registers of a context.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    image::{AppRegister, RegisterSet, MAX_RESULTS},
    uapi,
};
use core::mem::size_of;
use kernel::{
    prelude::*,
    uaccess::{UserPtr, UserSlice},
};

impl Call<'_> {
    pub(super) fn regs_write(&self) -> Result {
        let (regs, _) = self.registers(uapi::MAX_REGS)?;
        let _one_call = self.context.client.register_calls.lock();
        self.context.card.write_registers(self.context.id()?, &regs)
    }

    pub(super) fn regs_read(&self) -> Result {
        let (mut regs, array) = self.registers(uapi::MAX_REGS)?;
        {
            let _one_call = self.context.client.register_calls.lock();
            let id = self.context.id()?;
            self.context.card.read_registers(id, &mut regs)?;
        }
        write_registers(array, &regs)
    }

    pub(super) fn results(&self) -> Result {
        // CAST: 16.
        let (regs, _) = self.registers(MAX_RESULTS as u32)?;
        let mut registers = KVec::with_capacity(regs.len(), GFP_KERNEL_ACCOUNT)?;
        for &(register, value) in &regs {
            if value != 0 {
                return Err(EINVAL);
            }
            registers.push(register, GFP_KERNEL_ACCOUNT)?;
        }
        self.context.declare_results(&registers)
    }

    pub(super) fn regs_list(&self) -> Result {
        let mut user = self.read::<uapi::Regs>()?;
        let regs = user.value;
        check_flags(regs.flags, uapi::REGS_RESULTS)?;
        if regs.reserved != 0 || regs.count > uapi::MAX_REGS {
            return Err(EINVAL);
        }
        user.check_writable()?;
        let list = self
            .context
            .list_registers(regs.flags & uapi::REGS_RESULTS != 0)?;
        let array = UserPtr::from_addr(usize::try_from(regs.regs)?);
        let room = &list[..list.len().min(regs.count as usize)];
        write_registers(array, room)?;
        // CAST: no more than there are registers.
        user.value.count = list.len() as u32;
        user.write()
    }

    /// Copies in a `struct fermata_regs` and its array of at most `most` entries, and checks them.
    /// `EINVAL` also for a register that is named twice.
    fn registers(&self, most: u32) -> Result<(KVec<(AppRegister, u64)>, UserPtr)> {
        let regs = self.read::<uapi::Regs>()?.value;
        check_flags(regs.flags, 0)?;
        check_zero(regs.reserved)?;
        self.register_array(regs.count, regs.regs, most)
    }

    /// Copies in the array of `count` registers, at most `most`, at the user's address `array`, and
    /// checks them. `EINVAL` also for a register that is named twice.
    pub(super) fn register_array(
        &self,
        count: u32,
        array: u64,
        most: u32,
    ) -> Result<(KVec<(AppRegister, u64)>, UserPtr)> {
        if count > most {
            return Err(EINVAL);
        }
        let count = count as usize;
        let array = UserPtr::from_addr(usize::try_from(array)?);
        let mut reader = UserSlice::new(array, count * size_of::<uapi::Reg>()).reader();
        let mut registers = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut named = RegisterSet::EMPTY;
        for _ in 0..count {
            let reg = reader.read::<uapi::Reg>()?;
            let register = AppRegister::new(reg.offset)?;
            if reg.reserved != 0 || !named.insert(register) {
                return Err(EINVAL);
            }
            registers.push((register, reg.value), GFP_KERNEL_ACCOUNT)?;
        }
        self.check_present()?;
        Ok((registers, array))
    }
}

/// Copies registers out to an array that has room for them.
fn write_registers(array: UserPtr, registers: &[(AppRegister, u64)]) -> Result {
    let mut writer = UserSlice::new(array, registers.len() * size_of::<uapi::Reg>()).writer();
    for &(register, value) in registers {
        writer.write(&uapi::Reg {
            offset: register.offset(),
            reserved: 0,
            value,
        })?;
    }
    Ok(())
}
