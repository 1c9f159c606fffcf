//! The structs whose members, after the chain, are all plain numbers and absent from a request: most features and properties of a device.
//! They differ in names only, so the generator writes each as a row: sType, bytes of the members, sTypes of the structs that extend it, and the members.

/// Defines such structs with their codec. A request for such a struct has no members on the wire, as the driver writes them all.
macro_rules! plain_structures {
    ($($name:ident = $s_type:literal, $bytes:literal, [$($child:literal),*] {
        $($field:ident: $ty:ty = $vk:literal,)*
    })*) => {$(
        #[doc = concat!("`Vk", stringify!($name), "`")]
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        pub struct $name<'a> {
            pub p_next: Chain<'a>,
            $(pub $field: $ty,)*
        }

        impl<'a> Structure<'a> for $name<'a> {
            const S_TYPE: i32 = $s_type;
            const NAME: &'static str = stringify!($name);
            const EXTENDED_BY: &'static [i32] = &[$($child),*];
            const MIN_MEMBERS: usize = $bytes;

            fn decode_members(reader: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError> {
                reader.demand($bytes, stringify!($name))?;
                Ok(Self { p_next, $($field: reader.value(concat!(stringify!($name), ".", $vk))?,)* })
            }

            fn encode_members(&self, writer: &mut Writer<'_>) {
                $(writer.value(&self.$field);)*
            }

            fn p_next(&self) -> Chain<'a> {
                self.p_next
            }
        }

        impl<'a> OutStructure<'a> for $name<'a> {
            const MIN_PARTIAL_MEMBERS: usize = 0;

            fn decode_members_partial(_: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError> {
                Ok(Self { p_next, ..Self::default() })
            }

            fn encode_members_partial(&self, _: &mut Writer<'_>) {}
        }
    )*};
}

pub(super) use plain_structures;
