"""What a candidate's source may name: modules, import-time calls, builtins and attributes."""


def _names(text: str, prefix: str = "") -> frozenset[str]:
    return frozenset(prefix + word for word in text.split())


ALLOWED_MODULES = _names(
    "torch triton math cmath functools itertools typing typing_extensions dataclasses collections contextlib enum operator numbers "
    "__future__"
)
# Parts of torch and triton that start processes, load native code, read clocks or files, or change what others run.
FORBIDDEN_SUBMODULES = _names(
    "multiprocessing distributed utils.cpp_extension utils.data utils.benchmark utils.bottleneck utils.tensorboard utils.collect_env hub "
    "package serialization testing profiler autograd.profiler jit onnx export ops.load_library classes library overrides _C _dynamo "
    "_inductor cuda.profiler utils._python_dispatch utils.hooks futures monitor save load",
    "torch.",
) | _names(
    "testing compiler backends profiler _C autotune tools knobs runtime.cache runtime.build runtime.autotuner runtime.jit",
    "triton.",
)
ALLOWED_SUBMODULES = _names("triton.tools.tensor_descriptor")

# Standard modules that libraries carry as attributes (`functools.sys`, `torch.os`, `collections._sys`).
FORBIDDEN_PARTS = _names(
    "os sys subprocess socket threading thread gc ctypes time builtins importlib inspect multiprocessing pickle shutil atexit traceback "
    "weakref warnings tempfile pathlib linecache runpy asyncio"
)

FORBIDDEN_BUILTINS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "compile": "makes code from text",
    "__import__": "imports past the list of allowed modules",
    "open": "reads or writes files",
    "input": "reads the script's standard input",
    "print": "writes into the script's own output",
    "help": "writes into the script's own output",
    "globals": "reaches names from outside",
    "locals": "reaches names from outside",
    "vars": "reaches attributes from outside",
    "breakpoint": "stops the process",
    "exit": "ends the process",
    "quit": "ends the process",
    "SystemExit": "ends the process",
    "KeyboardInterrupt": "ends the process",
    "delattr": "takes attributes away",
    "__builtins__": "reaches names from outside",
    "__loader__": "reaches the import system",
    "__spec__": "reaches the import system",
}

FORBIDDEN_ATTRIBUTES = _names(
    "__globals__ __code__ __closure__ __builtins__ __subclasses__ __loader__ __spec__ __import__ __getattribute__ __defaults__ "
    "__kwdefaults__ __self__ __func__ __wrapped__ __reduce__ __reduce_ex__ __traceback__ f_back f_globals f_locals f_builtins f_code "
    "tb_frame tb_next gi_frame gi_code cr_frame cr_code ag_frame ag_code"
)
CLOCK_ATTRIBUTES = _names("elapsed_time perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns do_bench")
HOOK_ATTRIBUTES = _names(
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook "
    "register_module_forward_hook register_module_forward_pre_hook register_load_state_dict_pre_hook register_load_state_dict_post_hook "
    "register_state_dict_post_hook"
)
UNASSIGNABLE_ATTRIBUTES = _names("forward __class__ __dict__ __call__ _call_impl __code__ __defaults__")

# Functions of torch and triton that change the process for everyone in it.
PROCESS_STATE = _names(
    "set_default_dtype set_default_device set_default_tensor_type set_float32_matmul_precision set_num_threads set_num_interop_threads "
    "set_flush_denormal set_deterministic_debug_mode use_deterministic_algorithms manual_seed seed set_rng_state set_printoptions "
    "set_warn_always cuda.manual_seed cuda.manual_seed_all cuda.set_rng_state cuda.set_device cuda.empty_cache cuda.set_sync_debug_mode "
    "cuda.set_per_process_memory_fraction",
    "torch.",
)

# Calls that only make a constant or a definition, so that they may run while the file is imported.
PURE_CALLS = (
    _names(
        "int float bool str bytes complex len min max abs round sum pow divmod range tuple list dict set frozenset slice zip enumerate "
        "sorted reversed any all object property staticmethod classmethod isinstance issubclass hasattr getattr"
    )
    | _names(
        "finfo iinfo device Size no_grad inference_mode enable_grad compile cuda.is_available cuda.get_device_capability compiler.disable "
        "autograd.function.once_differentiable amp.custom_fwd amp.custom_bwd",
        "torch.",
    )
    | _names("jit cdiv next_power_of_2 heuristics constexpr_function language.constexpr language.cdiv", "triton.")
    | _names("partial lru_cache cache wraps cached_property", "functools.")
    | _names("namedtuple OrderedDict defaultdict deque Counter", "collections.")
    | _names("TypeVar NewType cast NamedTuple ParamSpec overload final", "typing.")
    | _names("enum.Enum enum.IntEnum enum.auto enum.unique operator.attrgetter operator.itemgetter operator.methodcaller")
    | _names("dataclasses.dataclass dataclasses.field contextlib.contextmanager contextlib.nullcontext")
)
PURE_MODULES = _names("math cmath itertools")
PURE_METHODS = _names("split join format items keys values strip lower upper get replace setter getter deleter")
# Calls of PURE_CALLS that may be given a function: they keep it and do not run it.
TAKES_FUNCTION = _names(
    "triton.jit triton.heuristics triton.constexpr_function torch.no_grad torch.inference_mode torch.compile torch.compiler.disable "
    "functools.partial functools.lru_cache functools.cache functools.wraps dataclasses.field property staticmethod classmethod"
)
RUNS_AT_DEFINITION = _names("__init_subclass__ __set_name__ __class_getitem__ __prepare__ __mro_entries__ __instancecheck__")
