/* What pysquashfs calls of libsquashfs, equal in squashfs-tools-ng 1.0.0 to 1.3.1; the writer needs 1.2. The names of
   functions and fields are those of its headers. Structs whose fields are not needed stay opaque. */

typedef struct sqfs_object_t {
    void (*destroy)(struct sqfs_object_t *);
    void *(*copy)(const struct sqfs_object_t *);
} sqfs_object_t;
typedef struct sqfs_file_t {
    sqfs_object_t base;
    int (*read_at)(struct sqfs_file_t *, uint64_t offset, void *buffer, size_t size);
    int (*write_at)(struct sqfs_file_t *, uint64_t offset, const void *buffer, size_t size);
    uint64_t (*get_size)(const struct sqfs_file_t *);
    int (*truncate)(struct sqfs_file_t *, uint64_t size);
} sqfs_file_t;
typedef struct sqfs_compressor_t {
    sqfs_object_t base;
    void (*get_configuration)(const struct sqfs_compressor_t *, void *config);
    int (*write_options)(struct sqfs_compressor_t *, sqfs_file_t *);
} sqfs_compressor_t;
typedef struct sqfs_super_t {
    uint32_t magic, inode_count, modification_time, block_size, fragment_entry_count;
    uint16_t compression_id, block_log, flags, id_count, version_major, version_minor;
    uint64_t root_inode_ref, bytes_used, id_table_start, xattr_id_table_start, inode_table_start;
    uint64_t directory_table_start, fragment_table_start, export_table_start;
} sqfs_super_t;
typedef struct { uint64_t start_offset; uint32_t size, padding; } sqfs_fragment_t;
/* An inode. Its base, and the fields of its type in `data`, are as they are stored in an image; `bytes` is all of
   `data`. Behind it are `payload_bytes_used` bytes: sizes of blocks, or the target of a symlink. */
typedef struct { uint16_t type, mode, uid_idx, gid_idx; uint32_t mod_time, inode_number; } sqfs_inode_t;
typedef struct {
    sqfs_inode_t base;
    uint32_t payload_bytes_available, payload_bytes_used;
    union {
        struct { uint32_t start_block, nlink; } dir;
        struct { uint32_t nlink; } dir_ext;
        struct { uint64_t blocks_start, file_size, sparse; uint32_t nlink; } file_ext;
        struct { uint32_t nlink, target_size; } slink;
        uint8_t bytes[40];
    } data;
    uint8_t extra[];
} sqfs_inode_generic_t;
typedef struct { uint32_t count, start_block, inode_number; } sqfs_dir_header_t;
typedef struct { uint16_t offset; int16_t inode_diff; uint16_t type, size; uint8_t name[]; } sqfs_dir_entry_t;

sqfs_file_t *sqfs_open_file(const char *filename, uint32_t flags);
int sqfs_super_read(sqfs_super_t *, sqfs_file_t *);
int sqfs_compressor_config_init(void *config, int id, size_t block_size, uint16_t flags);
int sqfs_compressor_create(const void *config, sqfs_compressor_t **out);

void *sqfs_id_table_create(uint32_t flags);
int sqfs_id_table_read(void *table, sqfs_file_t *, const sqfs_super_t *, sqfs_compressor_t *);
int sqfs_id_table_index_to_id(const void *table, uint16_t index, uint32_t *out);
void *sqfs_frag_table_create(uint32_t flags);
int sqfs_frag_table_read(void *table, sqfs_file_t *, const sqfs_super_t *, sqfs_compressor_t *);
int sqfs_frag_table_lookup(void *table, uint32_t index, sqfs_fragment_t *out);
void *sqfs_meta_reader_create(sqfs_file_t *, sqfs_compressor_t *, uint64_t start, uint64_t limit);
int sqfs_meta_reader_seek(void *reader, uint64_t block_start, size_t offset);
int sqfs_meta_reader_read_dir_header(void *reader, sqfs_dir_header_t *);
int sqfs_meta_reader_read_dir_ent(void *reader, sqfs_dir_entry_t **);
int sqfs_meta_reader_read_inode(
    void *reader, const sqfs_super_t *, uint64_t block_start, size_t offset, sqfs_inode_generic_t **);

void *sqfs_data_reader_create(sqfs_file_t *, size_t block_size, sqfs_compressor_t *, uint32_t flags);
int sqfs_data_reader_get_block(void *reader, const void *inode, size_t index, size_t *size, uint8_t **out);

/* Writing */

typedef struct sqfs_block_processor_desc_t {
    uint32_t size, max_block_size, num_workers, max_backlog;
    sqfs_compressor_t *cmp;
    void *wr, *tbl;
    sqfs_file_t *file;
    sqfs_compressor_t *uncmp;
} sqfs_block_processor_desc_t;

int sqfs_super_init(sqfs_super_t *, size_t block_size, uint32_t mtime, int compressor);
int sqfs_super_write(const sqfs_super_t *, sqfs_file_t *);
void *sqfs_block_writer_create(sqfs_file_t *, size_t device_block_size, uint32_t flags);
int sqfs_frag_table_write(void *table, sqfs_file_t *, sqfs_super_t *, sqfs_compressor_t *);
int sqfs_id_table_id_to_index(void *table, uint32_t id, uint16_t *out);
int sqfs_id_table_write(void *table, sqfs_file_t *, sqfs_super_t *, sqfs_compressor_t *);
int sqfs_block_processor_create_ex(const sqfs_block_processor_desc_t *, void **processor);
int sqfs_block_processor_begin_file(void *processor, sqfs_inode_generic_t **, void *user, uint32_t flags);
int sqfs_block_processor_append(void *processor, const void *data, size_t size);
int sqfs_block_processor_end_file(void *processor);
int sqfs_block_processor_finish(void *processor);
void *sqfs_meta_writer_create(sqfs_file_t *, sqfs_compressor_t *, uint32_t flags);
void sqfs_meta_writer_get_position(const void *writer, uint64_t *block, uint32_t *offset);
int sqfs_meta_writer_write_inode(void *writer, const void *inode);
int sqfs_meta_writer_flush(void *writer);
int sqfs_meta_write_write_to_file(void *writer);
void *sqfs_dir_writer_create(void *writer, uint32_t flags);
int sqfs_dir_writer_begin(void *writer, uint32_t flags);
int sqfs_dir_writer_add_entry(
    void *writer, const char *name, uint32_t number, uint64_t reference, uint16_t mode);
int sqfs_dir_writer_end(void *writer);
sqfs_inode_generic_t *sqfs_dir_writer_create_inode(
    const void *writer, size_t links, uint32_t xattr, uint32_t parent);
int sqfs_inode_set_xattr_index(void *inode, uint32_t index);
