// Files of JavaScript libraries in the folder of the last argument, and on stdout their cases and names: see
// make_tables_golden.py, which runs this.
import {writeFileSync} from 'node:fs'
import {createRequire} from 'node:module'
import {join} from 'node:path'

const out = process.argv.at(-1)
const require = createRequire(join(process.cwd(), 'x.js'))
const arrow = require('apache-arrow')
const {parquetWriteBuffer} = await import(join(process.cwd(), 'node_modules/hyparquet-writer/src/index.js'))
const rows = [...Array(24).keys()]
const cases = {}
const some = (make, each) => rows.map(row => (row % each === each - 1 ? null : make(row)))
const few = row => [...Array(row % 4).keys()].map(item => (item === 1 ? null : item))
const day = row => new Date(row * 86400e3)
const moment = row => new Date(1e12 + row * 1234567)

const fileOf = (name, suffix) => join(out, (cases[name] = `js${Object.keys(cases).length}.${suffix}`))
const save = (name, suffix, data) => writeFileSync(fileOf(name, suffix), Buffer.from(data))

const columns = [
  {name: 'truth', data: some(row => row % 3 === 0, 4), type: 'BOOLEAN'},
  {name: 'i32', data: rows.map(row => row * 1000 - 5), type: 'INT32'},
  {name: 'i64', data: some(row => 2n ** 62n + BigInt(row), 5), type: 'INT64'},
  {name: 'f32', data: rows.map(row => row / 4), type: 'FLOAT'},
  {name: 'f64', data: some(row => [NaN, -0, Infinity, row / 3][row % 4], 5), type: 'DOUBLE'},
  {name: 'text', data: some(row => `é${row % 7}`, 4), type: 'STRING'},
  {name: 'bytes', data: some(row => new Uint8Array([row, 255]), 6), type: 'BYTE_ARRAY'},
  {name: 'json', data: some(row => ({a: [row, null]}), 6), type: 'JSON'},
  {name: 'time', data: some(moment, 5), type: 'TIMESTAMP'},
  {name: 'uuid', data: rows.map(row => `00112233-4455-6677-8899-aabbccddee${row + 10}`), type: 'UUID'},
  {name: 'half', data: rows.map(row => row / 4), type: 'FLOAT16'},
  {name: 'list', data: some(few, 5)},
  {name: 'struct', data: rows.map(row => ({a: row, b: row % 3 ? `x${row}` : null}))},
]
const encoded = (encoding, names) =>
  parquetWriteBuffer({
    columnData: columns.filter(column => names.includes(column.name)).map(column => ({...column, encoding})),
    pageSize: 60,
    rowGroupSize: 15,
  })
save('hyparquet', 'parquet', parquetWriteBuffer({columnData: columns, rowGroupSize: 9}))
save('hyparquet, pages', 'parquet', parquetWriteBuffer({columnData: columns, rowGroupSize: [9, 15], pageSize: 60}))
save('hyparquet, plain', 'parquet', parquetWriteBuffer({columnData: columns, codec: 'UNCOMPRESSED', statistics: false}))
save('hyparquet, split', 'parquet', encoded('BYTE_STREAM_SPLIT', ['i32', 'i64', 'f32', 'f64', 'time', 'uuid', 'half']))
save('hyparquet, delta', 'parquet', encoded('DELTA_BINARY_PACKED', ['i32', 'i64', 'time']))
save('hyparquet, delta lengths', 'parquet', encoded('DELTA_LENGTH_BYTE_ARRAY', ['text', 'bytes', 'json']))
save('hyparquet, delta bytes', 'parquet', encoded('DELTA_BYTE_ARRAY', ['text', 'bytes', 'json']))
save('hyparquet, run lengths', 'parquet', encoded('RLE', ['truth']))
save('hyparquet, dictionary', 'parquet', encoded('RLE_DICTIONARY', columns.map(column => column.name)))

const vector = arrow.vectorFromArray
const item = new arrow.Field('item', new arrow.Int32(), true)
const pair = new arrow.Struct([new arrow.Field('key', new arrow.Utf8(), false), new arrow.Field('value', new arrow.Int32(), true)])
const ab = new arrow.Struct([new arrow.Field('a', new arrow.DateMillisecond(), true), new arrow.Field('b', new arrow.Utf8(), true)])
const table = new arrow.Table({
  truth: vector(some(row => row % 2 === 0, 3), new arrow.Bool()),
  i8: vector(some(row => row - 20, 4), new arrow.Int8()),
  u64: vector(some(row => 2n ** 63n + BigInt(row), 4), new arrow.Uint64()),
  half: vector(rows.map(row => row / 4), new arrow.Float16()),
  f64: vector(some(row => row / 3, 4), new arrow.Float64()),
  text: vector(some(row => `é${row}`, 4), new arrow.Utf8()),
  large: vector(some(row => `é${row}`, 4), new arrow.LargeUtf8()),
  bytes: vector(some(row => new Uint8Array([row, 255]), 4), new arrow.Binary()),
  kind: vector(some(row => `k${row % 3}`, 4)), // a dictionary
  day: vector(some(day, 4), new arrow.DateDay()),
  date: vector(some(moment, 4)), // milliseconds, as dates of JavaScript are
  time: vector(some(moment, 4), new arrow.TimestampMillisecond()),
  micro: vector(some(row => 1e12 + row, 4), new arrow.TimestampMicrosecond('UTC')),
  list: vector(some(few, 4), new arrow.List(item)),
  struct: vector(some(row => ({a: row % 5 ? moment(row) : null, b: `x${row}`}), 4), ab),
  fixed: vector(rows.map(row => [row, row + 1]), new arrow.FixedSizeList(2, item)),
  map: vector(some(row => new Map([['k', row]]), 4), new arrow.Map_(new arrow.Field('entries', pair, false))),
  decimal: vector(rows.map(row => new Uint32Array([row, 0, 0, 0])), new arrow.Decimal(2, 10, 128)),
})
const [first, ...others] = [table.slice(0, 9), table.slice(9, 15), table.slice(15)]
save('apache-arrow, file', 'arrow', arrow.tableToIPC(table, 'file'))
save('apache-arrow, stream', 'arrow', arrow.tableToIPC(table, 'stream'))
save('apache-arrow, batches', 'arrow', arrow.tableToIPC(first.concat(...others), 'file'))

for (const [library, pages] of ['parquetjs', '@dsnp/parquetjs'].flatMap(name => [[name, 1], [name, 2]])) {
  const parquet = require(library)
  const compression = pages === 1 ? 'SNAPPY' : 'GZIP'
  const field = (type, more = {}) => ({type, compression, ...more})
  const schema = new parquet.ParquetSchema({
    truth: field('BOOLEAN', {optional: true}), i32: field('INT32'), i64: field('INT64', {optional: true}),
    f32: field('FLOAT'), f64: field('DOUBLE', {optional: true}), text: field('UTF8', {optional: true}),
    bytes: field('BYTE_ARRAY'), json: field('JSON'), date: field('DATE'), time: field('TIMESTAMP_MILLIS'),
    micro: field('TIMESTAMP_MICROS'), clock: field('TIME_MILLIS'), u8: field('UINT_8'), u32: field('UINT_32'),
    tags: field('UTF8', {repeated: true}),
    structs: {repeated: true, fields: {q: field('INT64'), w: field('UTF8', {optional: true})}},
    one: {optional: true, fields: {q: field('INT32', {optional: true})}},
  })
  const options = {useDataPageV2: pages === 2, rowGroupSize: 9, pageSize: 300}
  const writer = await parquet.ParquetWriter.openFile(schema, fileOf(`${library}, pages ${pages}`, 'parquet'), options)
  writer.setRowGroupSize(9)
  for (const row of rows) {
    const parts = [...Array(row % 3).keys()]
    await writer.appendRow({
      i32: row, f32: row / 4, bytes: Buffer.from([row, 255]), json: {a: row}, date: day(row), time: moment(row),
      micro: moment(row), clock: row * 1000, u8: 200 + row, u32: 2 ** 31 - 50 + row, tags: parts.map(part => `t${part}`),
      structs: parts.map(part => (part ? {q: part, w: 'w'} : {q: part})),
      ...(row % 4 ? {truth: row % 2 === 0, i64: row * 1e9, f64: row / 3, text: `é${row}`} : {}),
      ...(row % 3 ? {one: row % 2 ? {q: row} : {}} : {}),
    })
  }
  await writer.close()
}
console.log(JSON.stringify(cases))
