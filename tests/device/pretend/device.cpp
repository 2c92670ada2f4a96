// A pretend accelerator: torch's PrivateUse1 backend over host memory, with the kernels of the CPU.
//
// It behaves as a GPU does where code for CPUs goes wrong: the host cannot read its memory (the address of a tensor has bit 62
// flipped, so that following it is a fault), an operator refuses tensors of two devices, and what makes the host wait or starts a
// kernel is counted. There are as many as UNDERSTUDY_PRETEND_DEVICES says, and processes that have one each exchange tensors.
// It shows no races of asynchronous copies or between streams, no kernel of its own, and no times.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <malloc.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

namespace {
using at::Tensor;
const auto KIND = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

// ---- Which device

c10::DeviceIndex device_count() {
    static const char* said = std::getenv("UNDERSTUDY_PRETEND_DEVICES");
    return static_cast<c10::DeviceIndex>(said ? std::atoi(said) : 1);
}

thread_local c10::DeviceIndex current = 0;

c10::Device here() { return {KIND, current}; }

void go_to(c10::DeviceIndex index) {
    TORCH_CHECK(index < device_count(), "pretend device: there is no device ", int(index));
    if (index >= 0) current = index;
}

// ---- What is counted

std::map<std::string, int64_t> launches, float64;  // by operator
bool counting = false;
thread_local int within = 0;                       // inside a kernel: what the CPU does there is not the program's doing
pybind11::object on_wait;                          // called with what the host waits for

bool outside() { return counting && within == 0; }

void launched(const std::string& name, bool of_float64) {
    if (!outside()) return;
    ++launches[name];
    if (of_float64) ++float64[name];
}

void waited(const std::string& what) {
    if (!outside()) return;
    pybind11::gil_scoped_acquire python;
    if (on_wait) on_wait(what);
}

struct Within {
    Within() { ++within; }
    ~Within() { --within; }
};

// ---- Memory

int64_t held = 0, most_held = 0;  // bytes

void* flipped(const void* pointer) {
    return pointer ? reinterpret_cast<void*>(reinterpret_cast<uint64_t>(pointer) ^ (uint64_t{1} << 62)) : nullptr;
}

void release(void* pointer) {
    void* own = flipped(pointer);
    held -= static_cast<int64_t>(malloc_usable_size(own));
    std::free(own);
}

struct Memory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void* own = nullptr;
        if (bytes) {
            TORCH_CHECK(posix_memalign(&own, 64, bytes) == 0, "pretend device: out of memory");
            held += static_cast<int64_t>(malloc_usable_size(own));
            most_held = std::max(most_held, held);
        }
        void* shown = flipped(own);
        return {shown, shown, own ? &release : &c10::detail::deleteNothing, here()};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        std::memcpy(flipped(to), flipped(from), bytes);
    }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory)

void resize_storage(const c10::Storage& storage, size_t bytes) {
    const c10::DeviceGuard on(storage.device());
    auto grown = memory.allocate(bytes);
    if (storage.nbytes() && bytes) std::memcpy(flipped(grown.get()), flipped(storage.data()), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

// The same memory as a tensor of the host.
Tensor seen(const Tensor& tensor) {
    if (!tensor.is_privateuseone()) return tensor;
    auto* begin = static_cast<char*>(flipped(tensor.storage().data()));
    void* first = tensor.numel() ? begin + tensor.storage_offset() * tensor.itemsize() : nullptr;
    return at::from_blob(first, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

// Memory of the host that the device may copy from by itself. Other memory the host has to copy while it waits.
std::map<const void*, size_t> pinned;

void unpin(void* pointer) {
    pinned.erase(pointer);
    std::free(pointer);
}

struct Pinned final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void* own = nullptr;
        if (bytes) {
            TORCH_CHECK(posix_memalign(&own, 64, bytes) == 0, "out of memory");
            pinned[own] = bytes;
        }
        return {own, own, own ? &unpin : &c10::detail::deleteNothing, c10::Device(at::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
    void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Pinned pinned_memory;

bool is_pinned(const void* pointer) {
    auto after = pinned.upper_bound(pointer);
    if (after == pinned.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return pointer < static_cast<const char*>(begin) + bytes;
}

// ---- The devices as torch asks for them, each with one stream

using Time = std::chrono::steady_clock::time_point;

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static c10::Stream stream(c10::Device device) {
        return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : here());
    }
    c10::DeviceType type() const override { return KIND; }
    c10::Device exchangeDevice(c10::Device device) const override {
        const auto before = here();
        go_to(device.index());
        return before;
    }
    c10::Device getDevice() const override { return here(); }
    void setDevice(c10::Device device) const override { go_to(device.index()); }
    void uncheckedSetDevice(c10::Device device) const noexcept override { current = std::max<int>(device.index(), 0); }
    c10::Stream getStream(c10::Device device) const override { return stream(device); }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
    c10::Stream getNewStream(c10::Device device, int) const override { return stream(device); }
    c10::Stream exchangeStream(c10::Stream next) const override { return stream(next.device()); }
    c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
    void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
        if (!*event) *event = new Time;
        *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
    }
    double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
        return std::chrono::duration<double, std::milli>(*static_cast<Time*>(end) - *static_cast<Time*>(begin)).count();
    }
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Time*>(event); }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override { waited("synchronize"); }
    void synchronizeEvent(void*) const override { waited("synchronize"); }
    void synchronizeDevice(c10::DeviceIndex) const override { waited("synchronize"); }
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
Guard guard;
c10::impl::DeviceGuardImplRegistrar registered_guard(KIND, &guard);

struct Generator final : at::CPUGeneratorImpl {
    explicit Generator(c10::DeviceIndex index) {
        device_ = c10::Device(KIND, index);
        key_set_ = KEYS;
    }
};

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return device_count(); }
    c10::DeviceIndex getCurrentDevice() const override { return current; }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
        static std::map<c10::DeviceIndex, at::Generator> generators;
        const auto own = index < 0 ? current : index;
        return generators.try_emplace(own, at::make_generator<Generator>(own)).first->second;
    }
    at::Generator getNewGenerator(c10::DeviceIndex index) const override {
        return at::make_generator<Generator>(index < 0 ? current : index);
    }
    at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
    bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize_storage(storage, bytes); }
};
Hooks hooks;

// ---- Tensors: made, viewed, resized

Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
    const c10::OptionalDeviceGuard on(device);
    return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
    const c10::OptionalDeviceGuard on(device);
    return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef wanted, std::optional<at::MemoryFormat>) {
    const auto size = C10_AS_INTARRAYREF_SLOW(wanted);
    const size_t bytes = (c10::multiply_integers(size) + self.storage_offset()) * self.itemsize();
    if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    return self;
}

Tensor& set_part(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
    auto* own = self.unsafeGetTensorImpl();
    own->set_storage_keep_dtype(std::move(storage));
    own->set_storage_offset(offset);
    if (stride.empty() && !size.empty())
        own->set_sizes_contiguous(size);
    else
        own->set_sizes_and_strides(size, stride);
    return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
    const auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
    return set_part(self, std::move(storage), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& other) {
    return set_part(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

// ---- Copies, and what else the host waits for

void transfer(const Tensor& from, const Tensor& to) {
    c10::impl::ExcludeDispatchKeyGuard no_gradient(c10::autograd_dispatch_keyset);
    seen(to).copy_(seen(from).expand(to.sizes()));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
    const bool up = !from.is_privateuseone(), down = !to.is_privateuseone();
    if (up && !(non_blocking && from.is_pinned()))
        waited("copy to the device");
    else if (down)  // without waiting too the host would have to wait before it reads
        waited("copy to the host");
    else if (up)
        launched("copy from pinned memory", false);
    else
        launched("aten::copy_", false);
    transfer(from, to);
    return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
    if (from.sizes() != to.sizes()) to.resize_(from.sizes());
    return copy_from(from, to, false);
}

at::Scalar item(const Tensor& self) {
    waited("item");
    c10::impl::ExcludeDispatchKeyGuard no_gradient(c10::autograd_dispatch_keyset);
    return seen(self).item();
}

// ---- Kernels: those of the CPU

bool is_indexing(const std::string& name) {
    return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
}

bool has_unknown_size(const std::string& name) {
    return name == "aten::nonzero" || name == "aten::masked_select" || name.rfind("aten::_unique", 0) == 0 ||
           name.rfind("aten::unique", 0) == 0;
}

void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto& name = schema.name();
    bool of_float64 = false, by_mask = false;
    std::optional<c10::Device> device;
    std::string elsewhere;
    const auto look = [&](const Tensor& tensor) {
        if (!tensor.defined()) return;
        if (tensor.is_privateuseone()) {
            TORCH_CHECK(
                within || tensor.device() == device.value_or(tensor.device()), "pretend device: tensors of ", *device, " and ",
                tensor.device(), " in ", name);
            device = tensor.device();
            of_float64 |= tensor.scalar_type() == at::kDouble;
        } else if (tensor.dim()) {  // a number of the host goes with the launch
            elsewhere += c10::str(" ", tensor.sizes());
        }
    };
    for (const auto& value : torch::jit::last(stack, schema.arguments().size())) {
        if (value.isTensor()) look(value.toTensor());
        if (value.isTensorList())
            for (const Tensor& tensor : value.toTensorVector()) look(tensor);
        if (value.isOptionalTensorList())
            for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
                if (tensor) {
                    look(*tensor);
                    by_mask |= tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte;
                }
    }
    if (within == 0 && device && !elsewhere.empty()) {
        TORCH_CHECK(is_indexing(name), "pretend device: tensors of the host in ", name, ":", elsewhere);
        waited("index of the host in " + name);
    }
    if (is_indexing(name) && by_mask) waited("mask in " + name);
    if (has_unknown_size(name)) waited(name);
    launched(name, of_float64);
    Within inside;
    at::native::cpu_fallback(op, stack);
}

// Where torch has no kernel for other devices to fall back from, or the CPU's lacks a type that a GPU's has.

Tensor sent(const Tensor& of_host, c10::Device device) {
    auto out = at::empty(of_host.sizes(), of_host.options().device(device));
    transfer(of_host, out);
    return out;
}

std::optional<Tensor> seen(const std::optional<Tensor>& tensor) {
    return tensor ? std::optional<Tensor>(seen(*tensor)) : std::nullopt;
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
    launched("convolution", false);
    c10::impl::ExcludeDispatchKeyGuard no_gradient(c10::autograd_dispatch_keyset);
    Within inside;
    return sent(at::convolution(
        seen(input), seen(weight), seen(bias), stride, padding, dilation, transposed, output_padding, groups), input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::IntArrayRef stride, c10::IntArrayRef padding,
    c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
    launched("convolution, backward", false);
    c10::impl::ExcludeDispatchKeyGuard no_gradient(c10::autograd_dispatch_keyset);
    Within inside;
    const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
    const auto [of_input, of_weight, of_bias] = at::convolution_backward(
        seen(gradient), seen(input), seen(weight), c10::IntArrayRef{outputs}, stride, padding, dilation, transposed,
        output_padding, groups, wanted);
    const auto back = [&](const Tensor& one) { return one.defined() ? sent(one, input.device()) : one; };
    return {back(of_input), back(of_weight), back(of_bias)};
}

Tensor histogram(const Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
    launched("aten::histc", false);
    Within inside;
    const auto counted = seen(self);
    const auto found = at::histc(counted.is_floating_point() ? counted : counted.to(at::kFloat), bins, low, high);
    return sent(found.to(self.scalar_type()), self.device());
}

// Attention without gradients is one kernel, as it is on a GPU.
int64_t attention_choice(
    const Tensor& query, const Tensor& key, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
    bool) {
    const bool learns = at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad());
    return static_cast<int64_t>(learns ? at::SDPBackend::math : at::SDPBackend::overrideable);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double, bool is_causal, bool,
    std::optional<double> scale) {
    TORCH_CHECK(!mask || mask->is_privateuseone(), "pretend device: the attention mask is on the host");
    launched("attention", false);
    c10::impl::ExcludeDispatchKeyGuard no_gradient(c10::autograd_dispatch_keyset);
    Within inside;
    const bool grouped = key.size(1) != query.size(1);
    const auto found =
        at::scaled_dot_product_attention(seen(query), seen(key), seen(value), seen(mask), 0.0, is_causal, scale, grouped);
    const auto none = at::empty({0}, query.options());
    return {sent(found, query.device()), none, none, none, 0, 0, none, none, none};
}

// ---- Processes that exchange tensors, each with a device of its own, as by NCCL: tensors of the host are refused, and the host
// does not wait. The exchange itself is that of the host, in the same memory.

using Tensors = std::vector<Tensor>;
using Asked = c10::intrusive_ptr<c10d::Work>;

struct Done final : c10d::Work {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    explicit Done(const Tensors& results)
        : future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
        future->markCompleted(c10::IValue(results));
    }
    bool isCompleted() override { return true; }
    bool isSuccess() const override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
    void synchronize() override {}
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};

struct Group final : c10d::Backend {
    c10::intrusive_ptr<c10d::Backend> host;
    explicit Group(c10::intrusive_ptr<c10d::Backend> of_host)
        : Backend(of_host->getRank(), of_host->getSize()), host(std::move(of_host)) {}

    static Tensor own(const Tensor& tensor) {
        TORCH_CHECK(tensor.device() == here(), "pretend device: a tensor of ", tensor.device(), " is exchanged on ", here());
        TORCH_CHECK(tensor.is_contiguous(), "pretend device: what is exchanged is not contiguous");
        return seen(tensor);
    }
    static Tensors own(const Tensors& tensors) {
        Tensors found;
        for (const auto& tensor : tensors) found.push_back(own(tensor));
        return found;
    }
    void sum(Tensors& of_host, const c10d::ReduceOp& op) {
        const bool mean = op.op_ == c10d::ReduceOp::AVG;
        c10d::AllreduceOptions asked;
        asked.reduceOp = mean ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
        host->allreduce(of_host, asked)->wait();
        for (auto& tensor : of_host)
            if (mean) tensor.div_(size_);
    }

    const std::string getBackendName() const override { return "pretend_ccl"; }
    Asked broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
        auto of_host = own(tensors);
        host->broadcast(of_host, options)->wait();
        return c10::make_intrusive<Done>(tensors);
    }
    Asked allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
        auto of_host = own(tensors);
        sum(of_host, options.reduceOp);
        return c10::make_intrusive<Done>(tensors);
    }
    Asked allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
        auto of_host = own(inputs);
        std::vector<Tensors> found;
        for (const auto& some : outputs) found.push_back(own(some));
        host->allgather(found, of_host, options)->wait();
        return c10::make_intrusive<Done>(outputs[0]);
    }
    Asked _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
        std::vector<Tensors> parts{own(output).view({size_, -1}).unbind()};
        Tensors of_host{own(input).view(-1)};
        host->allgather(parts, of_host, options)->wait();
        return c10::make_intrusive<Done>(Tensors{output});
    }
    Asked allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
        for (size_t number = 0; number < outputs.size(); ++number) _allgather_base(outputs[number], inputs[number], options);
        return c10::make_intrusive<Done>(outputs);
    }
    Asked _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
        Tensors of_host{own(input).clone()};
        sum(of_host, options.reduceOp);
        own(output).view(-1).copy_(of_host[0].view({size_, -1})[rank_]);
        return c10::make_intrusive<Done>(Tensors{output});
    }
    Asked barrier(const c10d::BarrierOptions&) override {
        host->barrier(c10d::BarrierOptions())->wait();
        return c10::make_intrusive<Done>(Tensors());
    }
};
}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("empty.memory_format", empty);
    library.impl("empty_strided", empty_strided);
    library.impl("resize_", resize);
    library.impl("set_.source_Storage_storage_offset", set_part);
    library.impl("set_.source_Storage", set_storage);
    library.impl("set_.source_Tensor", set_tensor);
    library.impl("as_strided", as_strided);
    library.impl("view", view);
    // As of CUDA: `parameter.data = parameter.to(device)`, by which modules move.
    library.impl("_has_compatible_shallow_copy_type", [](const Tensor&, const Tensor&) { return true; });
    library.impl("_reshape_alias", at::native::_reshape_alias);
    library.impl("unfold", at::native::unfold);
    library.impl("_copy_from", copy_from);
    library.impl("_copy_from_and_resize", copy_from_and_resize);
    library.impl("_local_scalar_dense", item);
    library.impl("convolution_overrideable", convolution);
    library.impl("convolution_backward_overrideable", convolution_backward);
    library.impl("histc", histogram);
    library.impl("_fused_sdp_choice", attention_choice);
    library.impl("_scaled_dot_product_fused_attention_overrideable", attention);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
    KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("register_hooks", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
    module.def("device_count", [] { return int(device_count()); });
    module.def("current_device", [] { return int(current); });
    module.def("set_device", [](int index) { go_to(index); });
    module.def("group", [](c10::intrusive_ptr<c10d::Backend> of_host) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<Group>(std::move(of_host));
    });
    module.def("begin", [](pybind11::object wait) {
        launches.clear();
        float64.clear();
        on_wait = std::move(wait);
        counting = true;
    });
    module.def("end", [] {
        counting = false;
        on_wait = pybind11::object();
        return std::make_pair(launches, float64);
    });
    module.def("memory", [] { return std::make_pair(held, most_held); });
    module.def("reset_peak", [] { most_held = held; });
}
