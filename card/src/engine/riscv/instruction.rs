// SPDX-License-Identifier: GPL-2.0-or-later
//! The instructions of RV32IM, Zicsr and Zifencei, and their decoder, for 32 bits and for 16 bits
//! (the C extension).

/// A register's number, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u8);

impl Reg {
    pub(super) const ZERO: Self = Self(0);
    const RA: Self = Self(1);
    const SP: Self = Self(2);

    /// Takes the five lowest bits of `field`.
    pub(super) fn new(field: u32) -> Self {
        Self((field & 31) as u8)
    }

    /// Returns the register's number, which is below 32.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// An operation on two operands.
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
    /// Returns the result, as the specification defines it; no operation traps.
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
    /// Returns whether the condition holds.
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

/// How many bytes are written to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions' own names
pub enum Store {
    Sb,
    Sh,
    Sw,
}

/// The new value of a CSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsrOp {
    /// The operand.
    Write,
    /// The old bits and those of the operand.
    Set,
    /// The old bits without those of the operand.
    Clear,
}

/// The second operand of an operation, or the operand for a CSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A register.
    Reg(Reg),
    /// An immediate of the instruction.
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

/// Returns `len` bits of `word` from bit `at` on.
pub(super) fn bits(word: u32, at: u32, len: u32) -> u32 {
    word >> at & ((1 << len) - 1)
}

/// Returns the `len` lowest bits of `value` as a signed number.
fn sign_extend(value: u32, len: u32) -> u32 {
    let unused = 32 - len;
    ((value << unused) as i32 >> unused) as u32
}

/// Decodes a word whose two lowest bits are set; `None` if this core does not have the instruction.
pub(super) fn decode(word: u32) -> Option<Inst> {
    let rd = Reg::new(word >> 7);
    let (rs1, rs2) = (Reg::new(word >> 15), Reg::new(word >> 20));
    let funct3 = bits(word, 12, 3);
    let imm_i = sign_extend(word >> 20, 12);
    Some(match word & 0x7f {
        0x37 => Inst::Lui {
            rd,
            imm: word & !0xfff,
        },
        0x17 => Inst::Auipc {
            rd,
            imm: word & !0xfff,
        },
        0x6f => Inst::Jal {
            rd,
            offset: imm_j(word),
        },
        0x67 if funct3 == 0 => Inst::Jalr {
            rd,
            rs1,
            offset: imm_i,
        },
        0x63 => Inst::Branch {
            condition: condition(funct3)?,
            rs1,
            rs2,
            offset: imm_b(word),
        },
        0x03 => Inst::Load {
            load: load(funct3)?,
            rd,
            rs1,
            offset: imm_i,
        },
        0x23 => Inst::Store {
            store: store(funct3)?,
            rs1,
            rs2,
            offset: sign_extend(bits(word, 25, 7) << 5 | bits(word, 7, 5), 12),
        },
        0x13 => {
            let (op, imm) = with_immediate(word)?;
            Inst::Op {
                op,
                rd,
                rs1,
                src: Source::Imm(imm),
            }
        }
        0x33 => Inst::Op {
            op: register_op(bits(word, 25, 7), funct3)?,
            rd,
            rs1,
            src: Source::Reg(rs2),
        },
        0x0f if funct3 < 2 => Inst::Nop,
        0x73 => system(word)?,
        _ => return None,
    })
}

fn imm_j(word: u32) -> u32 {
    let imm = bits(word, 31, 1) << 20
        | bits(word, 12, 8) << 12
        | bits(word, 20, 1) << 11
        | bits(word, 21, 10) << 1;
    sign_extend(imm, 21)
}

fn imm_b(word: u32) -> u32 {
    let imm = bits(word, 31, 1) << 12
        | bits(word, 7, 1) << 11
        | bits(word, 25, 6) << 5
        | bits(word, 8, 4) << 1;
    sign_extend(imm, 13)
}

fn condition(funct3: u32) -> Option<Condition> {
    Some(match funct3 {
        0 => Condition::Eq,
        1 => Condition::Ne,
        4 => Condition::Lt,
        5 => Condition::Ge,
        6 => Condition::Ltu,
        7 => Condition::Geu,
        _ => return None,
    })
}

fn load(funct3: u32) -> Option<Load> {
    Some(match funct3 {
        0 => Load::Lb,
        1 => Load::Lh,
        2 => Load::Lw,
        4 => Load::Lbu,
        5 => Load::Lhu,
        _ => return None,
    })
}

fn store(funct3: u32) -> Option<Store> {
    Some(match funct3 {
        0 => Store::Sb,
        1 => Store::Sh,
        2 => Store::Sw,
        _ => return None,
    })
}

/// Returns the operation of those that the base has in both forms.
fn base_op(funct3: u32) -> Op {
    match funct3 {
        0 => Op::Add,
        1 => Op::Sll,
        2 => Op::Slt,
        3 => Op::Sltu,
        4 => Op::Xor,
        5 => Op::Srl,
        6 => Op::Or,
        _ => Op::And,
    }
}

fn with_immediate(word: u32) -> Option<(Op, u32)> {
    let (funct7, shift) = (bits(word, 25, 7), bits(word, 20, 5));
    Some(match (bits(word, 12, 3), funct7) {
        (5, 0x20) => (Op::Sra, shift),
        (funct3 @ (1 | 5), 0) => (base_op(funct3), shift),
        (1 | 5, _) => return None,
        (funct3, _) => (base_op(funct3), sign_extend(word >> 20, 12)),
    })
}

fn register_op(funct7: u32, funct3: u32) -> Option<Op> {
    Some(match (funct7, funct3) {
        (0, _) => base_op(funct3),
        (0x20, 0) => Op::Sub,
        (0x20, 5) => Op::Sra,
        (1, 0) => Op::Mul,
        (1, 1) => Op::Mulh,
        (1, 2) => Op::Mulhsu,
        (1, 3) => Op::Mulhu,
        (1, 4) => Op::Div,
        (1, 5) => Op::Divu,
        (1, 6) => Op::Rem,
        (1, 7) => Op::Remu,
        _ => return None,
    })
}

fn system(word: u32) -> Option<Inst> {
    const WFI: u32 = 0x1050_0073;
    let funct3 = bits(word, 12, 3);
    let op = match (word, funct3 & 3) {
        (0x73, _) => return Some(Inst::Ecall),
        (0x10_0073, _) => return Some(Inst::Ebreak),
        (WFI, _) => return Some(Inst::Nop),
        (_, 1) => CsrOp::Write,
        (_, 2) => CsrOp::Set,
        (_, 3) => CsrOp::Clear,
        _ => return None,
    };
    let field = word >> 15;
    Some(Inst::Csr {
        op,
        rd: Reg::new(word >> 7),
        src: if funct3 & 4 == 0 {
            Source::Reg(Reg::new(field))
        } else {
            Source::Imm(field & 31)
        },
        csr: (word >> 20) as u16,
    })
}

/// Decodes a half-word whose two lowest bits are not both set; `None` if this core does not have
/// the instruction.
pub(super) fn decode_compressed(half: u16) -> Option<Inst> {
    let half = u32::from(half);
    match half & 3 {
        0 => quadrant0(half),
        1 => quadrant1(half),
        2 => quadrant2(half),
        _ => None,
    }
}

/// Returns one of x8 to x15, selected by the three bits from `at` on.
fn short(half: u32, at: u32) -> Reg {
    Reg::new(8 + bits(half, at, 3))
}

/// Returns the immediate in bits 12 and 6:2, as most instructions have it.
fn imm6(half: u32) -> u32 {
    sign_extend(bits(half, 12, 1) << 5 | bits(half, 2, 5), 6)
}

fn add_immediate(rd: Reg, rs1: Reg, imm: u32) -> Inst {
    Inst::Op {
        op: Op::Add,
        rd,
        rs1,
        src: Source::Imm(imm),
    }
}

fn quadrant0(half: u32) -> Option<Inst> {
    let (rs1, other) = (short(half, 7), short(half, 2));
    let offset = bits(half, 5, 1) << 6 | bits(half, 10, 3) << 3 | bits(half, 6, 1) << 2;
    Some(match bits(half, 13, 3) {
        // C.ADDI4SPN; reserved without an immediate, which includes all zeros.
        0 => {
            let imm = bits(half, 7, 4) << 6
                | bits(half, 11, 2) << 4
                | bits(half, 5, 1) << 3
                | bits(half, 6, 1) << 2;
            (imm != 0).then_some(add_immediate(other, Reg::SP, imm))?
        }
        2 => Inst::Load {
            load: Load::Lw,
            rd: other,
            rs1,
            offset,
        },
        6 => Inst::Store {
            store: Store::Sw,
            rs1,
            rs2: other,
            offset,
        },
        _ => return None,
    })
}

fn quadrant1(half: u32) -> Option<Inst> {
    let rd = Reg::new(half >> 7);
    let imm = imm6(half);
    Some(match bits(half, 13, 3) {
        0 => add_immediate(rd, rd, imm),
        1 => Inst::Jal {
            rd: Reg::RA,
            offset: jump_offset(half),
        },
        2 => add_immediate(rd, Reg::ZERO, imm),
        3 if imm == 0 => return None,
        3 if rd == Reg::SP => add_immediate(rd, rd, stack_adjustment(half)),
        3 => Inst::Lui { rd, imm: imm << 12 },
        4 => arithmetic(half)?,
        5 => Inst::Jal {
            rd: Reg::ZERO,
            offset: jump_offset(half),
        },
        funct3 => Inst::Branch {
            condition: if funct3 == 6 {
                Condition::Eq
            } else {
                Condition::Ne
            },
            rs1: short(half, 7),
            rs2: Reg::ZERO,
            offset: branch_offset(half),
        },
    })
}

/// Returns the immediate of C.ADDI16SP.
fn stack_adjustment(half: u32) -> u32 {
    let imm = bits(half, 12, 1) << 9
        | bits(half, 3, 2) << 7
        | bits(half, 5, 1) << 6
        | bits(half, 2, 1) << 5
        | bits(half, 6, 1) << 4;
    sign_extend(imm, 10)
}

fn jump_offset(half: u32) -> u32 {
    let imm = bits(half, 12, 1) << 11
        | bits(half, 8, 1) << 10
        | bits(half, 9, 2) << 8
        | bits(half, 6, 1) << 7
        | bits(half, 7, 1) << 6
        | bits(half, 2, 1) << 5
        | bits(half, 11, 1) << 4
        | bits(half, 3, 3) << 1;
    sign_extend(imm, 12)
}

fn branch_offset(half: u32) -> u32 {
    let imm = bits(half, 12, 1) << 8
        | bits(half, 5, 2) << 6
        | bits(half, 2, 1) << 5
        | bits(half, 10, 2) << 3
        | bits(half, 3, 2) << 1;
    sign_extend(imm, 9)
}

fn arithmetic(half: u32) -> Option<Inst> {
    let rd = short(half, 7);
    let wide = bits(half, 12, 1) == 1;
    let shift = bits(half, 2, 5);
    let (op, src) = match bits(half, 10, 2) {
        // A shift by 32 or more is for wider registers.
        0 | 1 if wide => return None,
        0 => (Op::Srl, Source::Imm(shift)),
        1 => (Op::Sra, Source::Imm(shift)),
        2 => (Op::And, Source::Imm(imm6(half))),
        _ if wide => return None,
        _ => {
            let op = match bits(half, 5, 2) {
                0 => Op::Sub,
                1 => Op::Xor,
                2 => Op::Or,
                _ => Op::And,
            };
            (op, Source::Reg(short(half, 2)))
        }
    };
    Some(Inst::Op {
        op,
        rd,
        rs1: rd,
        src,
    })
}

fn quadrant2(half: u32) -> Option<Inst> {
    let (rd, rs2) = (Reg::new(half >> 7), Reg::new(half >> 2));
    let wide = bits(half, 12, 1) == 1;
    Some(match bits(half, 13, 3) {
        0 if wide => return None,
        0 => Inst::Op {
            op: Op::Sll,
            rd,
            rs1: rd,
            src: Source::Imm(bits(half, 2, 5)),
        },
        2 if rd == Reg::ZERO => return None,
        2 => Inst::Load {
            load: Load::Lw,
            rd,
            rs1: Reg::SP,
            offset: bits(half, 2, 2) << 6 | bits(half, 12, 1) << 5 | bits(half, 4, 3) << 2,
        },
        4 => jumps_and_moves(wide, rd, rs2)?,
        6 => Inst::Store {
            store: Store::Sw,
            rs1: Reg::SP,
            rs2,
            offset: bits(half, 7, 2) << 6 | bits(half, 9, 4) << 2,
        },
        _ => return None,
    })
}

fn jumps_and_moves(wide: bool, rd: Reg, rs2: Reg) -> Option<Inst> {
    let jump = |link| Inst::Jalr {
        rd: link,
        rs1: rd,
        offset: 0,
    };
    Some(match (wide, rd == Reg::ZERO, rs2 == Reg::ZERO) {
        (false, true, true) => return None,
        (false, false, true) => jump(Reg::ZERO),
        (true, true, true) => Inst::Ebreak,
        (true, false, true) => jump(Reg::RA),
        (add, _, false) => Inst::Op {
            op: Op::Add,
            rd,
            rs1: if add { rd } else { Reg::ZERO },
            src: Source::Reg(rs2),
        },
    })
}
