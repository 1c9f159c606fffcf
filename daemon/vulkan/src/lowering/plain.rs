//! Lowering and raising of structs whose members, after the chain, are all plain numbers. The generator writes a row for each: sType and members.

/// Lowers and raises such structs, whose members are the same on both sides.
macro_rules! plain_structures {
    ($($name:ident = $s_type:literal { $($field:ident,)* })*) => {$(
        impl Lower for venus::$name<'_> {
            type Sys = sys::$name;

            fn lower(&self, l: &Lowering<'_>) -> Result<sys::$name, Fault> {
                let p_next = l.chain(self.p_next)?;
                Ok(sys::$name { s_type: $s_type, p_next, $($field: self.$field,)* })
            }
        }

        impl<'a> Raise<'a> for venus::$name<'a> {
            fn raise(&self, sys: &sys::$name, arena: &'a Arena) -> Result<Self, Fault> {
                let p_next = raise_chain(self.p_next, sys.p_next, arena)?;
                Ok(venus::$name { p_next, $($field: sys.$field,)* })
            }
        }
    )*};
}

pub(super) use plain_structures;
