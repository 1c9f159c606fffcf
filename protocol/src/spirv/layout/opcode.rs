//! Numbers of the instructions, enumerants and capabilities that the checks know by name (SPIR-V 1.6, 3.2 to 3.52).

macro_rules! numbers {
    ($($type:ty: $($name:ident = $value:literal),* $(,)?);* $(;)?) => {
        $($(
            #[doc = concat!("Number of `", stringify!($name), "`.")]
            pub(crate) const $name: $type = $value;
        )*)*
    };
}

numbers! {
    u16:
    UNDEF = 1, SOURCE_CONTINUED = 2, NAME = 5, MEMBER_NAME = 6, STRING = 7, LINE = 8, EXTENSION = 10,
    EXT_INST_IMPORT = 11, EXT_INST = 12, MEMORY_MODEL = 14, ENTRY_POINT = 15, EXECUTION_MODE = 16, CAPABILITY = 17,
    TYPE_VOID = 19, TYPE_BOOL = 20, TYPE_INT = 21, TYPE_FLOAT = 22, TYPE_VECTOR = 23, TYPE_MATRIX = 24,
    TYPE_IMAGE = 25, TYPE_SAMPLED_IMAGE = 27, TYPE_ARRAY = 28, TYPE_RUNTIME_ARRAY = 29, TYPE_STRUCT = 30,
    TYPE_POINTER = 32, TYPE_FUNCTION = 33, TYPE_PIPE = 38, TYPE_FORWARD_POINTER = 39, CONSTANT_TRUE = 41,
    CONSTANT_FALSE = 42, CONSTANT = 43, CONSTANT_COMPOSITE = 44, CONSTANT_NULL = 46, SPEC_CONSTANT_TRUE = 48, SPEC_CONSTANT_FALSE = 49, SPEC_CONSTANT = 50,
    SPEC_CONSTANT_COMPOSITE = 51, SPEC_CONSTANT_OP = 52, FUNCTION = 54, FUNCTION_PARAMETER = 55, FUNCTION_END = 56,
    FUNCTION_CALL = 57, VARIABLE = 59, STORE = 62, COPY_MEMORY = 63, DECORATE = 71, DECORATION_GROUP = 73, GROUP_DECORATE = 74,
    GROUP_MEMBER_DECORATE = 75, PHI = 245, LOOP_MERGE = 246, SELECTION_MERGE = 247, LABEL = 248, BRANCH = 249,
    BRANCH_CONDITIONAL = 250, SWITCH = 251, KILL = 252, RETURN = 253, RETURN_VALUE = 254, UNREACHABLE = 255,
    NO_LINE = 317, MODULE_PROCESSED = 330, EXECUTION_MODE_ID = 331, DECORATE_ID = 332, TERMINATE_INVOCATION = 4416,
    TYPE_UNTYPED_POINTER = 4417, UNTYPED_VARIABLE = 4418, EXT_INST_WITH_FORWARD_REFS = 4433,
    IGNORE_INTERSECTION = 4448, TERMINATE_RAY = 4449, TYPE_COOPERATIVE_MATRIX = 4456, COOPERATIVE_MATRIX_LENGTH = 4460,
    CONSTANT_COMPOSITE_REPLICATE = 4461, SPEC_CONSTANT_COMPOSITE_REPLICATE = 4462, TYPE_RAY_QUERY = 4472,
    TYPE_HIT_OBJECT = 5281, TYPE_COOPERATIVE_VECTOR = 5288, EMIT_MESH_TASKS = 5294,
    TYPE_ACCELERATION_STRUCTURE = 5341, TYPE_COOPERATIVE_MATRIX_NV = 5358, COOPERATIVE_MATRIX_REDUCE = 5366,
    COOPERATIVE_MATRIX_LOAD_TENSOR = 5367, COOPERATIVE_MATRIX_PER_ELEMENT = 5369, TYPE_TENSOR_LAYOUT = 5370,
    TYPE_TENSOR_VIEW = 5371, DECORATE_STRING = 5632, MEMBER_DECORATE_STRING = 5633;
    u32:
    GL_COMPUTE = 5, TASK_NV = 5267, MESH_NV = 5268, TASK_EXT = 5364, MESH_EXT = 5365, STORAGE_UNIFORM_CONSTANT = 0,
    STORAGE_UNIFORM = 2, STORAGE_PUSH_CONSTANT = 9, STORAGE_BUFFER = 12, STORAGE_PHYSICAL = 5349, STORAGE_WORKGROUP = 4, STORAGE_PRIVATE = 6, STORAGE_FUNCTION = 7, MODE_LOCAL_SIZE = 17,
    MODE_LOCAL_SIZE_ID = 38, DECORATION_SPEC_ID = 1, DECORATION_BUILT_IN = 11, DECORATION_DESCRIPTOR_SET = 34,
    BUILT_IN_WORKGROUP_SIZE = 25;
}

/// Returns whether an instruction ends a block.
pub(crate) fn is_terminator(opcode: u16) -> bool {
    matches!(
        opcode,
        BRANCH
            | BRANCH_CONDITIONAL
            | SWITCH
            | KILL
            | RETURN
            | RETURN_VALUE
            | UNREACHABLE
            | TERMINATE_INVOCATION
            | IGNORE_INTERSECTION
            | TERMINATE_RAY
            | EMIT_MESH_TASKS
    )
}

/// Returns whether an instruction declares a type.
pub(crate) fn is_type(opcode: u16) -> bool {
    matches!(
        opcode,
        TYPE_VOID
            ..=TYPE_PIPE
                | TYPE_UNTYPED_POINTER
                | TYPE_COOPERATIVE_MATRIX
                | TYPE_COOPERATIVE_VECTOR
                | TYPE_ACCELERATION_STRUCTURE
                | TYPE_COOPERATIVE_MATRIX_NV
                | TYPE_TENSOR_LAYOUT
                | TYPE_TENSOR_VIEW
                | TYPE_RAY_QUERY
                | TYPE_HIT_OBJECT
    )
}

/// Returns whether an execution model runs in workgroups.
pub(crate) fn has_workgroups(model: u32) -> bool {
    matches!(model, GL_COMPUTE | TASK_NV | MESH_NV | TASK_EXT | MESH_EXT)
}

/// Returns whether variables of a storage class lie in memory that the program gives, however large their type is.
pub(crate) fn is_given(storage_class: u32) -> bool {
    matches!(
        storage_class,
        STORAGE_UNIFORM_CONSTANT
            | STORAGE_UNIFORM
            | STORAGE_PUSH_CONSTANT
            | STORAGE_BUFFER
            | STORAGE_PHYSICAL
    )
}

/// Returns whether an instruction declares a constant, as far as shaders have them.
pub(crate) fn is_constant(opcode: u16) -> bool {
    matches!(
        opcode,
        CONSTANT_TRUE..=CONSTANT_NULL
            | SPEC_CONSTANT_TRUE..=SPEC_CONSTANT_OP
            | CONSTANT_COMPOSITE_REPLICATE
            | SPEC_CONSTANT_COMPOSITE_REPLICATE
            | UNDEF
    )
}
