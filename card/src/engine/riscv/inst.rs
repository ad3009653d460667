// SPDX-License-Identifier: GPL-2.0-or-later
//! The instructions of RV32IM, Zicsr and Zifencei, as the decoders give them.

/// A register's number, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u8);

impl Reg {
    pub(super) const ZERO: Self = Self(0);
    pub(super) const RA: Self = Self(1);
    pub(super) const SP: Self = Self(2);

    /// The five lowest bits of `field`.
    pub(super) fn new(field: u32) -> Self {
        Self((field & 31) as u8)
    }

    /// Its number; below 32.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What two operands become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions' own names
pub enum Op {
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
}

impl Op {
    /// The result, as the specification has it: there is none that traps.
    pub fn apply(self, a: u32, b: u32) -> u32 {
        let (sa, sb) = (a as i32, b as i32);
        let high = |product: i64| (product >> 32) as u32;
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Sll => a.wrapping_shl(b),
            Self::Slt => u32::from(sa < sb),
            Self::Sltu => u32::from(a < b),
            Self::Xor => a ^ b,
            Self::Srl => a.wrapping_shr(b),
            Self::Sra => sa.wrapping_shr(b) as u32,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Mul => a.wrapping_mul(b),
            Self::Mulh => high(i64::from(sa) * i64::from(sb)),
            Self::Mulhsu => high(i64::from(sa) * i64::from(b)),
            Self::Mulhu => ((u64::from(a) * u64::from(b)) >> 32) as u32,
            Self::Div if b == 0 => u32::MAX,
            Self::Div => sa.wrapping_div(sb) as u32,
            Self::Divu => a.checked_div(b).unwrap_or(u32::MAX),
            Self::Rem if b == 0 => a,
            Self::Rem => sa.wrapping_rem(sb) as u32,
            Self::Remu => a.checked_rem(b).unwrap_or(a),
        }
    }
}

/// When a branch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions' own names
pub enum Condition {
    Eq,
    Ne,
    Lt,
    Ge,
    Ltu,
    Geu,
}

impl Condition {
    /// Whether it holds.
    pub fn holds(self, a: u32, b: u32) -> bool {
        let (sa, sb) = (a as i32, b as i32);
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => sa < sb,
            Self::Ge => sa >= sb,
            Self::Ltu => a < b,
            Self::Geu => a >= b,
        }
    }
}

/// What is read from memory, and how it fills a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions' own names
pub enum Load {
    Lb,
    Lh,
    Lw,
    Lbu,
    Lhu,
}

/// How much is written to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions' own names
pub enum Store {
    Sb,
    Sh,
    Sw,
}

/// What becomes of a CSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsrOp {
    /// The operand.
    Write,
    /// Its bits and those of the operand.
    Set,
    /// Its bits without those of the operand.
    Clear,
}

/// The second operand of an operation, or what a CSR is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A register.
    Reg(Reg),
    /// A number of the instruction's own.
    Imm(u32),
}

/// An instruction. Offsets and immediates are sign-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are named as in the specification
pub enum Inst {
    Lui {
        rd: Reg,
        imm: u32,
    },
    Auipc {
        rd: Reg,
        imm: u32,
    },
    Jal {
        rd: Reg,
        offset: u32,
    },
    Jalr {
        rd: Reg,
        rs1: Reg,
        offset: u32,
    },
    Branch {
        condition: Condition,
        rs1: Reg,
        rs2: Reg,
        offset: u32,
    },
    Load {
        load: Load,
        rd: Reg,
        rs1: Reg,
        offset: u32,
    },
    Store {
        store: Store,
        rs1: Reg,
        rs2: Reg,
        offset: u32,
    },
    Op {
        op: Op,
        rd: Reg,
        rs1: Reg,
        src: Source,
    },
    Csr {
        op: CsrOp,
        rd: Reg,
        src: Source,
        csr: u16,
    },
    /// FENCE, FENCE.I and WFI: there is nothing to order and nothing to wait for.
    Nop,
    Ecall,
    Ebreak,
}
