// SPDX-License-Identifier: GPL-2.0
//! Decodes instructions of 32 bits.

use super::inst::{Condition, CsrOp, Inst, Load, Op, Reg, Source, Store};

/// `len` bits of `word` from bit `at` on.
pub(super) fn bits(word: u32, at: u32, len: u32) -> u32 {
    word >> at & ((1 << len) - 1)
}

/// The `len` lowest bits of `value` as a signed number.
pub(super) fn sign_extend(value: u32, len: u32) -> u32 {
    let unused = 32 - len;
    ((value << unused) as i32 >> unused) as u32
}

/// The instruction in a word whose two lowest bits are set; `None` where it is none of this core.
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

/// The operations that the base has in both forms.
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
