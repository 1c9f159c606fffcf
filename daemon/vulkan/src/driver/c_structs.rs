//! The C layouts of the registry's structs, which the generator writes as rows: names and C types of the members.

/// Defines structs as C has them, and lists their layouts for the test that compares them with ash's.
macro_rules! c_structs {
    ($($name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                $(pub $field: $ty,)*
            }
        )*

        /// Name, size and alignment of every struct.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[(&str, usize, usize)] =
            &[$((stringify!($name), size_of::<$name>(), align_of::<$name>()),)*];
    };
}

pub(super) use c_structs;
