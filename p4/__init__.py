"""The switch as a P4_16 program (docs/p4.md): its arithmetic, code generator and compiler."""
